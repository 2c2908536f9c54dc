"""How long it takes to answer texts in several ways, timed in turn so that a busy moment hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from exitpoll.benchmark.baselines import Way, full_graph, plain_transformers, truncated, whole_batch_waits
from exitpoll.data.batching import Text, lengths_of
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.splits import Texts
from exitpoll.decide.policy import Policy
from exitpoll.engine.engine import Engine
from exitpoll.engine.loading import find_folder, load_model
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.files import read_json
from exitpoll.models.folder import MANIFEST, POLICY, RUNTIMES

BATCH_SIZES = (1, 8, 32, 128)
PLAIN = "plain transformers"
FULL = "engine, all layers"
PARTS = {
    "tokenize": "tokenizing",
    "embed": "embedding",
    "advance": "layers",
    "logits_at": "heads",
    "opinion": "decision",
    "answers": "decision",
    "gather": "gathering",
}


@dataclass(frozen=True)
class Contestant:
    """A model in one runtime, with its policy."""

    kind: str  # "torch", "onnx" or "onnx-int8"
    loaded: LoadedModel
    policy: Policy


@dataclass(frozen=True)
class Timing:
    """How long one way took."""

    runtime: str
    way: str
    batch_size: int
    milliseconds: float  # a text, in the fastest of several rounds
    depth: float  # layers a text needed, on average
    against_plain: float  # times as fast as plain transformers
    against_full: float  # times as fast as the engine with all layers, in the same runtime
    of_layers: float  # what the clock keeps of the speed-up in layers: against_full ÷ (layers ÷ depth)


@dataclass(frozen=True)
class Breakdown:
    """Where the engine's time went."""

    runtime: str
    batch_size: int
    milliseconds: Mapping[str, float]  # a text, by part; "other" is what keeps the texts in order


@dataclass(frozen=True)
class Benchmark:
    """What was timed, and where the engine's time went."""

    texts: int
    mean_tokens: float
    threads: int
    layers: int
    timings: Sequence[Timing]
    breakdowns: Sequence[Breakdown]
    about: Mapping[str, Any] = field(default_factory=dict)  # model, data, split

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain values."""
        return asdict(self)

    @classmethod
    def load(cls, path: Path) -> Benchmark:
        """Read what `exitpoll bench` wrote.

        Args:
            path: Its bench.json.

        Returns:
            The timings.
        """
        if not path.exists():
            raise InputError(f"there is no '{path}'; exitpoll bench --out writes one")
        content = read_json(path) or {}
        try:
            found = {each.name: content[each.name] for each in fields(cls)}
            found["timings"] = [Timing(**each) for each in found["timings"]]
            found["breakdowns"] = [Breakdown(**each) for each in found["breakdowns"]]
            if not found["timings"] or not found["breakdowns"]:
                raise ValueError("it is empty")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"'{path}' is not what exitpoll bench writes") from error
        return cls(**found)


def contestants(model: str | Path, *, threads: int | None = None) -> list[Contestant]:
    """Open a model in every runtime that its folder has something for, each with its own policy.

    Args:
        model: The trained folder.
        threads: How many threads to use.

    Returns:
        The contestants, torch first.
    """
    kinds = [kind for kind in RUNTIMES if kind == "torch" or (Path(model) / kind / MANIFEST).exists()]
    found = []
    for kind in kinds:
        path = find_folder(model, kind) / POLICY
        if not path.exists():
            raise InputError(f"'{path}' is missing, and without a policy no text leaves early; calibrate first")
        found.append(Contestant(kind, load_model(model, kind, threads=threads), Policy.load(path)))
        threads = found[0].loaded.runtime.threads  # the same for all
    return found


def benchmark(
    runners: Sequence[Contestant],
    texts: Sequence[Text],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    rounds: int = 5,
    compiled: bool = False,
    on_progress: OnProgress = ignore,
) -> Benchmark:
    """Time the engine in several runtimes beside what one would run instead.

    Args:
        runners: The model in each runtime, torch first.
        texts: Texts to answer.
        batch_sizes: Most texts in a call.
        rounds: How often each way is timed, after a first time that does not count.
        compiled: Whether to time a compiled encoder too.
        on_progress: Called after every run.

    Returns:
        The timings.
    """
    if not texts:
        raise InputError("there are no texts to time")
    if rounds < 1 or any(size < 1 for size in batch_sizes):
        raise InputError("rounds and batch sizes must be at least 1")
    if not runners or runners[0].kind != "torch":
        raise InputError("torch must be the first of the runtimes: the others are compared with it")
    depths = {each.kind: _mean_depth(each, texts) for each in runners}
    ways = _ways(runners, depths, compiled=compiled)
    timings: list[Timing] = []
    for number, batch_size in enumerate(batch_sizes):
        runs = len(ways) * (rounds + 1)
        count = _count_from(number * runs, len(batch_sizes) * runs, on_progress)
        fastest = _time_in_turn(ways, texts, batch_size, rounds, count)
        timings += _timings(fastest, runners, depths, batch_size)
    runtime = runners[0].loaded.runtime
    return Benchmark(
        texts=len(texts),
        mean_tokens=float(lengths_of(runners[0].loaded.tokenize(Texts.of(texts))).mean()),
        threads=runtime.threads,
        layers=runtime.exit_layers[-1],
        timings=timings,
        breakdowns=[where_time_goes(each, texts, size) for each in runners for size in batch_sizes],
    )


def _mean_depth(contestant: Contestant, texts: Sequence[Text]) -> float:
    """Count the layers that a text needs, on average."""
    found = Engine(contestant.loaded, contestant.policy)(texts)
    return float(np.mean([prediction.depth for prediction in found]))


def _ways(runners: Sequence[Contestant], depths: Mapping[str, float], *, compiled: bool) -> dict[tuple[str, str], Way]:
    """List the ways to answer, by runtime and name."""
    first = runners[0].loaded
    ways: dict[tuple[str, str], Way] = {("torch", PLAIN): plain_transformers(first)}
    if compiled:
        ways["torch", "torch.compile"] = plain_transformers(first, compiled=True)
    for each in runners:
        if each.kind != "torch":
            ways[each.kind, "full graph"] = full_graph(first, int8=each.kind == "onnx-int8")
        engine = Engine(each.loaded, each.policy)
        ways[each.kind, FULL] = Engine(each.loaded)
        ways[each.kind, "engine"] = engine
        ways[each.kind, "engine, no refill"] = _without_refill(engine)
        ways[each.kind, "whole batch waits"] = whole_batch_waits(each.loaded, each.policy)
        ways[each.kind, "static"] = truncated(each.loaded, _nearest_exit(each, depths[each.kind]))
    return ways


def _without_refill(engine: Engine) -> Way:
    """Let batches shrink, and nobody wait for others."""
    return lambda texts, batch_size: list(engine.stream(texts, batch_size, refill=False))


def _nearest_exit(contestant: Contestant, depth: float) -> int:
    """Find the exit of a static model that is about as deep, or a little deeper."""
    layers = np.asarray(contestant.loaded.runtime.exit_layers)
    return min(int(np.searchsorted(layers, np.rint(depth))), len(layers) - 1)


def _count_from(start: int, total: int, on_progress: OnProgress) -> OnProgress:
    """Count runs on from those before."""
    return lambda progress: on_progress(replace(progress, done=start + progress.done, total=total))


def _time_in_turn(
    ways: Mapping[tuple[str, str], Way],
    texts: Sequence[Text],
    batch_size: int,
    rounds: int,
    on_progress: OnProgress,
) -> dict[tuple[str, str], float]:
    """Time every way once in each round: seconds a text of the fastest, for other work can only make it slower."""
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in ways}
    for attempt in range(rounds + 1):
        for number, (key, way) in enumerate(ways.items(), start=1):
            started = time.perf_counter()
            way(texts, batch_size)
            seconds[key].append(time.perf_counter() - started)
            on_progress(Progress("timing", attempt * len(ways) + number, len(ways) * (rounds + 1)))
    return {key: min(times[1:]) / len(texts) for key, times in seconds.items()}


def _timings(
    fastest: Mapping[tuple[str, str], float],
    runners: Sequence[Contestant],
    depths: Mapping[str, float],
    batch_size: int,
) -> list[Timing]:
    """Turn seconds into ratios."""
    found = []
    for (kind, way), seconds in fastest.items():
        each = next(each for each in runners if each.kind == kind)
        layers = each.loaded.runtime.exit_layers
        depth: float = layers[-1]
        if way == "static":
            depth = layers[_nearest_exit(each, depths[kind])]
        elif way.startswith("whole") or (way.startswith("engine") and way != FULL):
            depth = depths[kind]
        against_full = fastest[kind, FULL] / seconds
        found.append(
            Timing(
                runtime=kind,
                way=way,
                batch_size=batch_size,
                milliseconds=round(1000 * seconds, 4),
                depth=round(depth, 3),
                against_plain=round(fastest["torch", PLAIN] / seconds, 3),
                against_full=round(against_full, 3),
                of_layers=round(against_full * depth / layers[-1], 3),
            )
        )
    return found


def where_time_goes(contestant: Contestant, texts: Sequence[Text], batch_size: int) -> Breakdown:
    """Take the engine's time apart.

    Args:
        contestant: A model in one runtime.
        texts: Texts to answer.
        batch_size: Most texts in a call.

    Returns:
        The time of each part.
    """
    clock = dict.fromkeys(PARTS.values(), 0.0)
    loaded: Any = _Clocked(contestant.loaded, clock)
    runtime: Any = _Clocked(contestant.loaded.runtime, clock)
    policy: Any = _Clocked(contestant.policy, clock)
    engine = Engine(replace(contestant.loaded, runtime=runtime, tokenize=loaded.tokenize), policy)
    engine(texts[: 2 * batch_size], batch_size)
    clock.update(dict.fromkeys(clock, 0.0))
    started = time.perf_counter()
    engine(texts, batch_size)
    whole = time.perf_counter() - started
    clock["other"] = whole - sum(clock.values())
    parts = {part: round(1000 * seconds / len(texts), 4) for part, seconds in clock.items()}
    return Breakdown(contestant.kind, batch_size, parts)


class _Clocked:
    """Something whose methods are timed."""

    def __init__(self, inner: Any, clock: dict[str, float]) -> None:
        """Take what is to be timed, and where to add the seconds."""
        self._inner, self._clock = inner, clock

    def __getattr__(self, name: str) -> Any:
        """Give what the thing itself has; methods that are parts of the work with a clock around them."""
        found = getattr(self._inner, name)
        if name not in PARTS:
            return found

        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = found(*arguments)
            self._clock[PARTS[name]] += time.perf_counter() - started
            return result

        return timed
