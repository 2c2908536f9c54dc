"""What a call costs in a runtime, measured: how large calls should be, and when it pays to join texts."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Tokens
from exitpoll.data.splits import Texts
from exitpoll.engine.loading import find_folder
from exitpoll.engine.runtime import LoadedModel, Runtime, exits_by_itself
from exitpoll.files import read_json, write_json
from exitpoll.models.folder import COSTS, MANIFEST

WORDS = 14  # of the texts that are timed
SIZES = (1, 4, 16, 48)  # texts in a call
ATTEMPTS = 3  # at timing a size; the fastest counts
LONGEST = 0.6  # seconds that measuring may take
WORTH = 0.1  # share of the time of a call above which its overhead is worth waiting for others
ABOUT_BEST = 1.1  # times the least time of a token: up to there, larger calls are as good
MOST_TOKENS = 1 << 30  # of costs that are kept
MOST_KEPT = 32  # costs in a file: containers have a new host name each time


@dataclass(frozen=True)
class CallCosts:
    """What a call costs, in tokens: a call with n tokens takes as long as call_tokens + n tokens in a large call."""

    call_tokens: float  # overhead of a call
    best_tokens: int  # tokens in a call above which a token takes more time, or no less

    @property
    def enough_tokens(self) -> int:
        """Tokens for which a call of their own pays: its overhead is a small share of it."""
        return max(1, min(self.best_tokens, round(self.call_tokens / WORTH)))


# For jobs that are too short for measuring.
USUAL = CallCosts(call_tokens=16.0, best_tokens=512)


def measure_costs(model: LoadedModel) -> CallCosts:
    """Time calls of several sizes.

    Args:
        model: The model in its runtime, with its threads.

    Returns:
        What a token costs in a large call, and what a call costs beside its tokens.
    """
    seconds = _time_calls(model)  # by tokens
    tokens, times = np.array(list(seconds), dtype=np.float64), np.array(list(seconds.values()))
    if len(times) < 2 or (np.diff(times) <= 0).any():  # the clock says nothing
        return USUAL
    per_token = times / tokens
    best = int(tokens[per_token <= ABOUT_BEST * per_token.min()].max())
    overhead = _overhead(tokens[tokens <= best], times[tokens <= best])
    if best == tokens[-1]:  # nothing says that larger calls are worse: there was no time for them
        best = max(best, USUAL.best_tokens, round(overhead / WORTH))  # where a call costs much, as on a GPU
    return CallCosts(round(overhead, 2), best)


def _overhead(tokens: NDArray, times: NDArray) -> float:
    """Return the overhead of a call in tokens: of a line through the smallest call and the largest that is not slower.

    A line through larger calls would be too steep, as if small ones had no overhead.
    """
    if len(tokens) < 2:
        return 0.0
    slope = (times[-1] - times[0]) / (tokens[-1] - tokens[0])
    return max(float(times[0] / slope - tokens[0]), 0.0)


def _time_calls(model: LoadedModel) -> dict[int, float]:
    """Time calls of growing size, as large as there is time for: seconds of the fastest attempt, by tokens.

    All sizes are timed in turn, so that other load affects them alike.
    """
    text = model.tokenize(Texts([" ".join(["a"] * WORDS)]))
    length = len(text["input_ids"][0])
    seconds: dict[int, float] = {}
    for attempt in range(ATTEMPTS):
        for texts in SIZES:
            if attempt and texts * length not in seconds:
                break
            before = time.perf_counter()
            _run_all_layers(model.runtime, {name: list(column) * texts for name, column in text.items()})
            spent = time.perf_counter() - before
            seconds[texts * length] = min(spent, seconds.get(texts * length, spent))
            if not attempt and 4 * ATTEMPTS * spent > LONGEST:
                break  # the next size takes up to four times as long
    return seconds


def _run_all_layers(runtime: Runtime, tokens: Tokens) -> None:
    """Run texts through all layers: the weights of one layer alone would stay in the cache of the processor."""
    if exits_by_itself(runtime):
        runtime.run_to(tokens, len(runtime.exit_layers) - 1)
    else:
        runtime.advance(runtime.embed(tokens), range(1, runtime.exit_layers[-1] + 1))


def costs_of(model: LoadedModel) -> CallCosts:
    """Return the costs of calls, as measured on this machine before, or now; an export keeps them in its folder.

    Args:
        model: The model.

    Returns:
        The costs.
    """
    costs = kept_costs(model)
    if costs is None:
        costs = measure_costs(model)
        path = _path_of(model)
        if path is not None:
            kept = {**_kept_in(path), _key_of(model): asdict(costs)}
            with suppress(OSError):  # a folder that cannot be written to
                write_json(path, dict(list(kept.items())[-MOST_KEPT:]))
    return costs


def kept_costs(model: LoadedModel) -> CallCosts | None:
    """Return the costs of calls as they were measured before, which takes no time.

    Args:
        model: The model.

    Returns:
        The costs; None if they were not measured on this machine, or not kept.
    """
    path = _path_of(model)
    return None if path is None else _read_costs(_kept_in(path).get(_key_of(model)))


def _path_of(model: LoadedModel) -> Path | None:
    """Return the file in which costs are kept: only exports keep them."""
    if model.origin is None:
        return None
    folder = find_folder(model.origin.folder, model.origin.runtime)
    return folder / COSTS if (folder / MANIFEST).exists() else None


def _kept_in(path: Path) -> Mapping[str, object]:
    """Return what is kept in a file, the oldest first."""
    return (read_json(path) or {}) if path.exists() else {}


def _key_of(model: LoadedModel) -> str:
    """Return what costs depend on beside the model."""
    runtime = model.runtime
    versions = " ".join(f"{package} {version(package)}" for package in runtime.packages)
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # exports are published: not its name
    return f"{versions}, {runtime.threads} threads, {platform.machine()}, host {host}"


def _read_costs(content: object) -> CallCosts | None:
    """Return costs that were kept; None if they are not what is kept."""
    if not isinstance(content, Mapping) or set(content) != {"call_tokens", "best_tokens"}:
        return None
    call, best = content["call_tokens"], content["best_tokens"]
    is_valid = isinstance(call, int | float) and 0 <= call < MOST_TOKENS and isinstance(best, int)
    return CallCosts(float(call), best) if is_valid and 0 < best < MOST_TOKENS else None
