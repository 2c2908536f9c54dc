"""Predictor: early exit as a step of a Ray Data pipeline."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from exitpoll.data.columns import find_text_columns
from exitpoll.data.rows import Row
from exitpoll.decide.policy import Policy
from exitpoll.engine.blocks import PREDICTED
from exitpoll.engine.engine import Label, Probability
from exitpoll.engine.model_choice import ModelChoice
from exitpoll.engine.processes import ONE_THREAD
from exitpoll.errors import InputError


class Predictor:
    """Adds the columns predicted, probability and depth to batches, for `Dataset.map_batches`.

    Example: `dataset.map_batches(Predictor, fn_constructor_args=("trec-bert",), batch_size=4096, compute=
    ray.data.ActorPoolStrategy(size=2), num_cpus=0.5)`. Every call drains its own texts, so that batches should have
    1,024 rows or more; and some CPU must be left for the tasks that read and write, or Ray Data waits for ever.
    """

    def __init__(
        self,
        model: str | Path,
        runtime: str | None = None,
        *,
        policy: Policy | None = None,
        text_column: str | None = None,
        pair_column: str | None = None,
        batch_size: int = 32,
        threads: int = 1,
    ) -> None:
        """Load a model, with one thread by default.

        Args:
            model: As for `Engine.load`.
            runtime: As for `Engine.load`.
            policy: As for `Engine.load`.
            text_column: The column of the text; chosen by convention if not given.
            pair_column: The column of the second text of a pair.
            batch_size: The bound on memory, as for an engine.
            threads: How many threads to use.
        """
        if threads == 1:
            os.environ.update(ONE_THREAD)
        self.engine = ModelChoice.of(model, runtime).load(policy, threads)
        self._names, self._batch_size = (text_column, pair_column), batch_size

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Predict the texts of a batch.

        Args:
            batch: Columns by name, as NumPy arrays.

        Returns:
            The columns, and those of the predictions.
        """
        for name in PREDICTED:
            if name in batch:
                raise InputError(f"there is a column '{name}' already, which predictions need; rename it")
        text, pair = find_text_columns([Row(dict.fromkeys(batch), "the batch")], *self._names)
        texts = batch[text] if pair is None else list(zip(batch[text], batch[pair], strict=True))
        predictions = self.engine(texts, self._batch_size)
        return {
            **batch,
            PREDICTED[0]: _column([prediction.label for prediction in predictions]),
            PREDICTED[1]: _column([_known(prediction.probability) for prediction in predictions]),
            PREDICTED[2]: np.array([prediction.depth for prediction in predictions], dtype=np.int64),
        }


def _known(probability: Probability) -> Probability | None:
    """Return a probability; None for a value, which has none."""
    return None if not isinstance(probability, dict) and math.isnan(probability) else probability


def _column(values: list[Label] | list[Probability | None]) -> np.ndarray:
    """Return values as a column; several labels of a text, and their probabilities, as objects."""
    if values and isinstance(values[0], str | float):
        return np.array(values)
    column = np.empty(len(values), dtype=object)
    column[:] = [list(value) if isinstance(value, tuple) else value for value in values]
    return column
