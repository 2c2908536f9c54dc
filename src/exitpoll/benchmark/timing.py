"""Wall-clock time of the engine and its baselines, timed alternately so that other load affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

import numpy as np

from exitpoll.benchmark.baselines import batch_level_exit, plain_transformers, single_graph, static_model
from exitpoll.benchmark.parts import Breakdown, break_down
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


class Way(StrEnum):
    """Ways to run a model: the engine and its baselines, by their names in bench.json and in the order of tables."""

    PLAIN = "plain transformers"
    COMPILED = "torch.compile"
    SINGLE_GRAPH = "full graph"
    FULL_DEPTH = "engine, all layers"
    ENGINE = "engine"
    NO_REFILL = "engine, no refill"
    STATIC = "static"
    BATCH_LEVEL_EXIT = "whole batch waits"


Runner = Callable[[Sequence[Text], int], object]  # texts, batch size -> logits or predictions

ALL_LAYERS = (Way.PLAIN, Way.COMPILED, Way.SINGLE_GRAPH, Way.FULL_DEPTH)  # ways that need no exits


@dataclass(frozen=True)
class ModelInRuntime:
    """A model in one runtime, with its policy."""

    kind: str  # "torch", "onnx" or "onnx-int8"
    loaded: LoadedModel
    policy: Policy


@dataclass(frozen=True)
class Timing:
    """Wall-clock time of one way to run a model."""

    runtime: str
    way: Way
    batch_size: int
    milliseconds: float  # a text, in the fastest of several rounds
    depth: float  # mean layers a text
    against_plain: float  # times as fast as plain transformers
    against_full: float  # times as fast as the engine with all layers, in the same runtime
    of_layers: float  # share of the speed-up in layers that is left in wall-clock time: against_full ÷ (layers ÷ depth)
    rounds: Sequence[float] = ()  # milliseconds a text in every round


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one way is as another that was timed in the same rounds."""

    value: float  # in the fastest rounds
    low: float  # in the worst round for it
    high: float  # in the best round for it

    @classmethod
    def of(cls, slower: Timing, faster: Timing) -> Ratio:
        """Compute the ratio of two times, with its range over the rounds."""
        pairs = zip(slower.rounds, faster.rounds, strict=True)
        ratios = [slow / fast for slow, fast in pairs] or [slower.milliseconds / faster.milliseconds]
        return cls(round(slower.milliseconds / faster.milliseconds, 3), round(min(ratios), 3), round(max(ratios), 3))

    def __str__(self) -> str:
        """Format the ratio with its range."""
        return f"{self.value:.2f} × ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Gain:
    """What makes the engine faster than plain transformers: its runtime, which needs no exits, and early exit."""

    runtime: str
    batch_size: int
    without_exits: Ratio  # plain transformers ÷ the fastest way to run all layers in this runtime
    by_exits: Ratio  # that way ÷ the engine
    total: Ratio  # plain transformers ÷ the engine, the product of the two

    def __str__(self) -> str:
        """Describe both factors in a line."""
        return (
            f"{self.runtime}, batch size {self.batch_size}: {self.by_exits} by early exit, on top of "
            f"{self.without_exits} by running all layers in {self.runtime}; together {self.total} as fast as plain "
            "transformers"
        )


@dataclass(frozen=True, repr=False)
class Benchmark:
    """Timings of all ways, runtimes and batch sizes."""

    texts: int
    mean_tokens: float
    threads: int
    layers: int
    timings: Sequence[Timing]
    breakdowns: Sequence[Breakdown]
    about: Mapping[str, object] = field(default_factory=dict)  # fingerprints by runtime, data, split

    def __repr__(self) -> str:
        """Describe what was timed, and the gains."""
        return f"Benchmark({self.texts} texts, {self.threads} threads; {'; '.join(map(str, self.gains))})"

    @property
    def gains(self) -> list[Gain]:
        """What early exit gains, and what each runtime gains without it, by runtime and batch size."""
        timings = {(timing.runtime, timing.batch_size, timing.way): timing for timing in self.timings}
        gains = []
        for engine in (timing for timing in self.timings if timing.way == Way.ENGINE):
            plain = timings["torch", engine.batch_size, Way.PLAIN]
            ways = (timings.get((engine.runtime, engine.batch_size, way)) for way in ALL_LAYERS)
            full = min(filter(None, ways), key=lambda timing: timing.milliseconds)
            ratios = Ratio.of(plain, full), Ratio.of(full, engine), Ratio.of(plain, engine)
            gains.append(Gain(engine.runtime, engine.batch_size, *ratios))
        return gains

    def check_model(self, path: Path, fingerprint: str) -> None:
        """Refuse timings of another model than one, in any of its runtimes.

        Args:
            path: Where the timings come from, for the message.
            fingerprint: That of the model, or of an export.
        """
        timed = self.about.get("fingerprints")
        if isinstance(timed, Mapping) and fingerprint not in timed.values():
            listed = ", ".join(map(str, timed.values()))
            raise InputError(f"'{path}' was made from another model: fingerprint {listed}, not {fingerprint}")

    def to_dict(self) -> dict[str, object]:
        """Return all figures as plain values, with the gains that follow from them."""
        return {**asdict(self), "gains": list(map(asdict, self.gains))}

    @classmethod
    def load(cls, path: Path) -> Benchmark:
        """Load what `exitpoll bench` wrote.

        Args:
            path: Its bench.json.

        Returns:
            The timings.
        """
        if not path.exists():
            raise InputError(f"there is no '{path}'; exitpoll bench --out writes one")
        content = read_json(path) or {}
        try:
            values = {field.name: content[field.name] for field in fields(cls)}
            values["timings"] = [Timing(**{**row, "way": Way(row["way"])}) for row in values["timings"]]
            values["breakdowns"] = [Breakdown(**row) for row in values["breakdowns"]]
            if not values["timings"] or not values["breakdowns"]:
                raise ValueError("it is empty")
            result = cls(**values)
            if len(result.gains) == 0:
                raise ValueError("the engine was not timed")
        except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise InputError(f"'{path}' is not what exitpoll bench writes") from error
        return result


def load_in_runtimes(
    model_folder: str | Path, *, threads: int | None = None, device: str = "cpu"
) -> list[ModelInRuntime]:
    """Load a model in every runtime that its folder has files for, with the policy for that runtime.

    Args:
        model_folder: The trained folder.
        threads: How many threads to use.
        device: Where to run torch; if that is not the CPU, exports are left out, which run there.

    Returns:
        The model in these runtimes, torch first.
    """
    kinds = [kind for kind in RUNTIMES if kind == "torch" or (Path(model_folder) / kind / MANIFEST).exists()]
    models: list[ModelInRuntime] = []
    for kind in kinds:
        path = find_folder(model_folder, kind) / POLICY
        if not path.exists():
            raise InputError(f"'{path}' is missing, and without a policy no text exits early; calibrate first")
        loaded = load_model(model_folder, kind, threads=threads, device=device)
        models.append(ModelInRuntime(kind, loaded, Policy.load(path)))
        if loaded.runtime.device != "cpu":
            break
        threads = models[0].loaded.runtime.threads  # the same for all
    return models


def benchmark(
    models: Sequence[ModelInRuntime],
    texts: Sequence[Text],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    rounds: int = 5,
    compiled: bool = False,
    ways: Collection[Way] = tuple(Way),
    on_progress: OnProgress = ignore,
) -> Benchmark:
    """Time the engine in several runtimes, and its baselines.

    Args:
        models: The model in several runtimes, torch first.
        texts: Texts to predict.
        batch_sizes: Texts in a batch; for an engine, the bound on memory.
        rounds: How often everything is timed, after a warm-up round.
        compiled: Whether to time a compiled encoder too.
        ways: The ways to time beside plain transformers and the engine.
        on_progress: Called after every run.

    Returns:
        The timings.
    """
    if not texts:
        raise InputError("there are no texts to time")
    if rounds < 1 or any(size < 1 for size in batch_sizes):
        raise InputError("rounds and batch sizes must be at least 1")
    if not models or models[0].kind != "torch":
        raise InputError("torch must be the first of the runtimes: the others are compared with it")
    entries = _plain_entries(models[0], compiled=compiled)
    for model in models:
        entries += _entries(model, models[0], texts, ways)
    timings: list[Timing] = []
    for number, batch_size in enumerate(batch_sizes):
        runs = len(entries) * (rounds + 1)
        count = _count_from(number * runs, len(batch_sizes) * runs, on_progress)
        timings += _timings(entries, _time_alternately(entries, texts, batch_size, rounds, count), batch_size)
    runtime = models[0].loaded.runtime
    return Benchmark(
        texts=len(texts),
        mean_tokens=float(lengths_of(models[0].loaded.tokenize(Texts.of(texts))).mean()),
        threads=runtime.threads,
        layers=runtime.exit_layers[-1],
        timings=timings,
        breakdowns=[
            break_down(model.kind, model.loaded, model.policy, texts, size) for model in models for size in batch_sizes
        ],
    )


# ---- what is timed --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """One way to run a model in one runtime."""

    runtime: str
    way: Way
    run: Runner
    depth: float  # mean layers a text
    layers: int  # of the full model


def _plain_entries(model: ModelInRuntime, *, compiled: bool) -> list[_Entry]:
    """List the ways to run the full model without the engine, in torch."""
    layers = model.loaded.runtime.exit_layers[-1]
    ways = {Way.PLAIN: plain_transformers(model.loaded)}
    if compiled:
        ways[Way.COMPILED] = plain_transformers(model.loaded, compiled=True)
    return [_Entry(model.kind, way, run, layers, layers) for way, run in ways.items()]


def _entries(
    model: ModelInRuntime, in_torch: ModelInRuntime, texts: Sequence[Text], ways: Collection[Way]
) -> list[_Entry]:
    """List the ways to run a model in its runtime."""
    loaded, engine = model.loaded, Engine(model.loaded, model.policy)
    exit_layers = loaded.runtime.exit_layers
    layers = exit_layers[-1]
    depth = float(np.mean([prediction.depth for prediction in engine(texts)]))
    static = _nearest_exit(exit_layers, depth)
    graph = partial(single_graph, in_torch.loaded, int8=model.kind == "onnx-int8")
    in_torch_itself = model.kind == "torch"
    make: dict[Way, tuple[Callable[[], Runner], float]] = {  # what runs, and its mean depth
        Way.SINGLE_GRAPH: (graph, layers),
        Way.FULL_DEPTH: (lambda: Engine(loaded), layers),
        Way.ENGINE: (lambda: engine, depth),
        Way.NO_REFILL: (lambda: _without_refill(engine), depth),
        Way.BATCH_LEVEL_EXIT: (lambda: batch_level_exit(loaded, model.policy), depth),
        Way.STATIC: (
            lambda: static_model(loaded, static) if in_torch_itself else graph(exit_number=static),
            exit_layers[static],
        ),
    }
    wanted = {Way.ENGINE, *ways} - ({Way.SINGLE_GRAPH} if in_torch_itself else set())
    return [_Entry(model.kind, way, run(), deep, layers) for way, (run, deep) in make.items() if way in wanted]


def _without_refill(engine: Engine) -> Runner:
    """Return an engine whose batches shrink: no text waits for others."""
    return lambda texts, batch_size: list(engine.stream(texts, batch_size, refill=False))


def _nearest_exit(exit_layers: Sequence[int], depth: float) -> int:
    """Return the exit of a static model that is about as deep, or a little deeper."""
    return min(int(np.searchsorted(exit_layers, np.rint(depth))), len(exit_layers) - 1)


# ---- time -----------------------------------------------------------------------------------------------------------


def _count_from(start: int, total: int, on_progress: OnProgress) -> OnProgress:
    """Return a callback that adds earlier runs to the count."""
    return lambda progress: on_progress(replace(progress, done=start + progress.done, total=total))


def _time_alternately(
    entries: Sequence[_Entry], texts: Sequence[Text], batch_size: int, rounds: int, on_progress: OnProgress
) -> list[list[float]]:
    """Measure the seconds a text of all entries in every round, after a warm-up round."""
    seconds: list[list[float]] = [[] for _ in entries]
    for attempt in range(rounds + 1):
        for number, entry in enumerate(entries):
            started = time.perf_counter()
            entry.run(texts, batch_size)
            seconds[number].append(time.perf_counter() - started)
            on_progress(Progress("timing", attempt * len(entries) + number + 1))
    return [[spent / len(texts) for spent in times[1:]] for times in seconds]


def _timings(entries: Sequence[_Entry], seconds: Sequence[Sequence[float]], batch_size: int) -> list[Timing]:
    """Compute ratios of the seconds a text in the fastest round, as other load only adds time."""
    fastest = {(entry.runtime, entry.way): min(times) for entry, times in zip(entries, seconds, strict=True)}
    timings = []
    for entry, times in zip(entries, seconds, strict=True):
        value = min(times)
        against_full = fastest[entry.runtime, Way.FULL_DEPTH] / value
        timings.append(
            Timing(
                runtime=entry.runtime,
                way=entry.way,
                batch_size=batch_size,
                milliseconds=round(1000 * value, 4),
                depth=round(entry.depth, 3),
                against_plain=round(fastest["torch", Way.PLAIN] / value, 3),
                against_full=round(against_full, 3),
                of_layers=round(against_full * entry.depth / entry.layers, 3),
                rounds=[round(1000 * spent, 4) for spent in times],
            )
        )
    return timings
