"""What the dialects share: a request becomes an `Ask` and a way to write its answer; scores in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from exitpoll.decide.numerics import softmax
from exitpoll.engine.engine import Prediction
from exitpoll.server.model_thread import Result
from exitpoll.server.refusals import RefusalError, invalid
from exitpoll.server.service import Ask, Running, Service

FUNCTIONS = ("softmax", "sigmoid", "none")
SHORTEST, LONGEST = 1e-6, 1e6  # seconds of a timeout


@dataclass(frozen=True)
class Incoming:
    """A request as it came."""

    body: bytes
    headers: Mapping[str, str]
    path: Mapping[str, str]  # parameters in the path


Render = Callable[[Running, Sequence[Result]], Response]
Parse = Callable[[Service, Incoming], tuple[Ask, Render]]


@dataclass(frozen=True)
class Dialect:
    """How one kind of client writes requests, and reads answers and errors."""

    parse: Parse
    error: Callable[[RefusalError], object]
    is_finite: bool = True  # whether logits that are not finite are an error of the whole request


def timeout_of(incoming: Incoming, milliseconds: float | None = None) -> float | None:
    """Return the seconds that a request may take: the least of what its body and its header say."""
    given = [] if milliseconds is None else [min(milliseconds, 2000 * LONGEST) / 1000]  # integers may be huge
    header = incoming.headers.get("x-request-timeout-seconds")
    if header is not None:
        try:
            given.append(float(header))
        except ValueError as error:
            raise invalid(f"X-Request-Timeout-Seconds must be a number, not {header!r:.40}") from error
    for seconds in given:
        if not SHORTEST <= seconds <= LONGEST:
            raise invalid(f"the timeout must be from {1000 * SHORTEST:g} ms to {LONGEST:.0f} s")
    return min(given, default=None)


def scores_of(prediction: Prediction, names: Sequence[str], function: str | None = None) -> dict[str, float]:
    """Return the score of every class, by name in the order of classes.

    Args:
        prediction: The prediction.
        names: The labels of the model.
        function: "softmax", "sigmoid" or "none"; by default what the model was trained for. A value has none.

    Returns:
        The scores; for regression the value, under its only name.
    """
    if isinstance(prediction.label, float):
        return {names[0] if names else "value": prediction.label}
    if function is None or prediction.logits is None:
        return prediction.probabilities
    return dict(zip(names, _applied(function, np.asarray(prediction.logits)).tolist(), strict=True))


def _applied(function: str, logits: NDArray) -> NDArray:
    """Turn logits into scores."""
    if function == "softmax":
        return softmax(logits)
    return 1 / (1 + np.exp(-logits.astype(np.float64))) if function == "sigmoid" else logits


def ranked(prediction: Prediction, scores: Mapping[str, float], top_k: int | None) -> list[tuple[str, float]]:
    """Sort scores, highest first; the label that was answered stands before all others.

    Args:
        prediction: The prediction: votes of several exits may answer another label than that of the highest score.
        scores: By label.
        top_k: How many to return; all by default.

    Returns:
        Labels with scores.
    """
    rows = sorted(scores.items(), key=lambda row: (row[0] != prediction.label, -row[1]))
    return rows[:top_k]
