"""Types of options that several verbs share.

Choices come from the tables of strategies, metrics and tasks: help and checks list whatever these hold when a verb is
loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_type_hints

from cyclopts import Parameter

from exitpoll.cli.groups import IN_DATA, IN_METHOD, IN_MODEL, IN_OPTIMIZER, IN_OUTPUT
from exitpoll.data.tasks import TASKS
from exitpoll.decide.metrics import METRICS
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.engine.inputs import Split
from exitpoll.training.settings import TrainingSettings

if TYPE_CHECKING:
    MetricName = str
    StrategyName = str
    StrategyOrBest = str
else:
    MetricName = Annotated[Literal[tuple(METRICS)], IN_METHOD]
    StrategyName = Literal[tuple(STRATEGIES)]
    StrategyOrBest = Annotated[Literal[("best", *STRATEGIES)], IN_METHOD]

_SEVERAL = Parameter(consume_multiple=True, negative="")
_KNOWN_TASKS = ", ".join(TASKS)
_DATA = Parameter(
    help="A CSV, TSV, JSONL, JSON or Parquet file (also .gz and .zst), a folder with train, dev and test files, a "
    f"dataset on the hub, a known task ({_KNOWN_TASKS}), or embedded, the movie reviews of the extra demo."
)
_TASK = Parameter(help=f"The known task whose metric to use, if the name of the data is not a task's: {_KNOWN_TASKS}.")

# Types without a group: verbs add one, as in Annotated[Numbers, IN_MODEL].
Names = Annotated[list[str] | None, _SEVERAL]
Numbers = Annotated[list[int] | None, _SEVERAL]
Floats = Annotated[list[float] | None, _SEVERAL]

Strategies = Annotated[list[StrategyName] | None, _SEVERAL, IN_METHOD]
Data = Annotated[str, _DATA, IN_DATA]
OptionalData = Annotated[str | None, _DATA, IN_DATA]
SplitName = Annotated[Split, IN_DATA]
TracePath = Annotated[Path | None, IN_DATA]
PolicyPath = Annotated[Path | None, IN_MODEL]
BatchSize = Annotated[int, IN_MODEL]
Threads = Annotated[int | None, IN_MODEL]
Device = Annotated[str, IN_MODEL]
RuntimeName = Annotated[Literal["torch", "onnx", "onnx-int8"] | None, IN_MODEL]
Cluster = Annotated[str | None, IN_MODEL]
Out = Annotated[Path, IN_OUTPUT]
OptionalOut = Annotated[Path | None, IN_OUTPUT]
Resume = Annotated[bool, IN_OUTPUT]
Overwrite = Annotated[bool, IN_OUTPUT]
AsJson = Annotated[
    bool,
    IN_OUTPUT,
    Parameter(
        name="--json",
        negative="",
        show_default=False,
        help="Print the result as JSON, and nothing else on standard output: other lines go to standard error.",
    ),
]


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


ReadingFlags = Annotated[Reading | None, Parameter(name="*"), IN_DATA]

_GROUPS = {"max_length": IN_DATA} | dict.fromkeys(  # of the settings of a training; all others are the optimizer's
    (
        *("method", "objective", "schedule", "strategy", "exit_weights", "diversity_weight", "closest"),
        *("through_target", "neighbors", "last_diversity", "temperature", "layer_drop"),
    ),
    IN_METHOD,
)


def _grouped_settings() -> type[TrainingSettings]:
    """Annotate the settings of a training with the groups in which help lists them."""
    hints = get_type_hints(TrainingSettings)
    switches = {True: Parameter(negative_bool="no-")}  # by default: what is on can be turned off
    annotated = [
        (
            row.name,
            Annotated[hints[row.name], _GROUPS.get(row.name, IN_OPTIMIZER), switches.get(row.default is True)],
            field(default=row.default),
        )
        for row in fields(TrainingSettings)
    ]
    return make_dataclass(
        "TrainingSettings",
        annotated,
        bases=(TrainingSettings,),
        namespace={"__doc__": TrainingSettings.__doc__, "__module__": __name__},
        frozen=True,
        kw_only=True,
    )


if TYPE_CHECKING:
    TrainingFlags = TrainingSettings | None
else:
    TrainingFlags = Annotated[_grouped_settings() | None, Parameter(name="*")]


def plain_settings(flags: TrainingFlags) -> TrainingSettings:
    """Return what the command line sets as the class of the library, which other processes can import.

    Args:
        flags: As a verb gets them; None if nothing was set.

    Returns:
        The settings.
    """
    return TrainingSettings() if flags is None else TrainingSettings(**vars(flags))
