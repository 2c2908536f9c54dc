"""What a call costs in a runtime, measured: how large calls should be, and when it pays to join texts."""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version

import numpy as np

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
    slope = (times[-1] - times[0]) / (tokens[-1] - tokens[0]) if len(tokens) > 1 else 0.0
    if slope <= 0:  # the clock says nothing
        return USUAL
    per_token = times / tokens
    best = int(tokens[per_token <= ABOUT_BEST * per_token.min()].max())
    overhead = max(times[0] - slope * tokens[0], 0.0)  # of a line through the smallest and the largest call
    return CallCosts(round(float(overhead / slope), 2), best)


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
        runtime.run_to(tokens, len(runtime.exit_layers) - 1, every_head=False)
    else:
        runtime.advance(runtime.embed(tokens), range(1, runtime.exit_layers[-1] + 1))


def costs_of(model: LoadedModel) -> CallCosts:
    """Return the costs of calls, as measured on this machine before, or now; an export keeps them in its folder.

    Args:
        model: The model.

    Returns:
        The costs.
    """
    path = None if model.origin is None else find_folder(model.origin.folder, model.origin.runtime) / COSTS
    if path is None or not (path.parent / MANIFEST).exists():
        return measure_costs(model)
    runtime = model.runtime
    versions = " ".join(f"{package} {version(package)}" for package in runtime.packages)
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:8]  # exports are published: not its name
    key = f"{versions}, {runtime.threads} threads, {platform.machine()}, host {host}"
    kept = (read_json(path) or {}) if path.exists() else {}
    costs = _read_costs(kept.get(key))
    if costs is None:
        costs = measure_costs(model)
        with suppress(OSError):  # a folder that cannot be written to
            write_json(path, {**kept, key: asdict(costs)})
    return costs


def _read_costs(content: object) -> CallCosts | None:
    """Return costs that were kept; None if they are not what is kept."""
    if not isinstance(content, Mapping) or set(content) != {"call_tokens", "best_tokens"}:
        return None
    call, best = content["call_tokens"], content["best_tokens"]
    is_valid = isinstance(call, int | float) and 0 <= call < MOST_TOKENS and isinstance(best, int)
    return CallCosts(float(call), best) if is_valid and 0 < best < MOST_TOKENS else None
