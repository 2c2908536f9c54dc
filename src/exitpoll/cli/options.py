"""Types of options that several verbs share.

Choices come from the tables of strategies, metrics and tasks: help and checks list whatever these hold when a verb is
loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from exitpoll.data.tasks import TASKS
from exitpoll.decide.metrics import METRICS
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.training.settings import TrainingSettings

if TYPE_CHECKING:
    MetricName = str
    StrategyName = str
    StrategyOrBest = str
else:
    MetricName = Literal[tuple(METRICS)]
    StrategyName = Literal[tuple(STRATEGIES)]
    StrategyOrBest = Literal[("best", *STRATEGIES)]

_SEVERAL = Parameter(consume_multiple=True, negative="")
_KNOWN_TASKS = ", ".join(TASKS)
_DATA = Parameter(
    help="A CSV, TSV, JSONL or Parquet file, a folder with train, dev and test files, a dataset on the hub, or a known "
    f"task: {_KNOWN_TASKS}."
)
_TASK = Parameter(help=f"The known task whose metric to use, if the name of the data is not a task's: {_KNOWN_TASKS}.")

Names = Annotated[list[str] | None, _SEVERAL]
Numbers = Annotated[list[int] | None, _SEVERAL]
Floats = Annotated[list[float] | None, _SEVERAL]
Strategies = Annotated[list[StrategyName] | None, _SEVERAL]
Data = Annotated[str, _DATA]
OptionalData = Annotated[str | None, _DATA]
TrainingFlags = Annotated[TrainingSettings | None, Parameter(name="*")]


@dataclass(frozen=True)
class Reading:
    """Which columns to read; recognized by their usual names if not given.

    Args:
        task: The known task whose metric to use, if the name of the data is not a task's.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
    """

    task: Annotated[str | None, _TASK] = None
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
