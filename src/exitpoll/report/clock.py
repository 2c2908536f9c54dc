"""Wall-clock time on the page: what the runtime gains without exits, what exits add, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exitpoll.benchmark.timing import Benchmark, Breakdown, Timing, Way

WAYS = tuple(way for way in Way if way != Way.NO_REFILL)  # as the page orders them
WITHOUT_EXITS = (Way.SINGLE_GRAPH, Way.PLAIN, Way.FULL_DEPTH)  # the first that was timed in a runtime is its baseline


@dataclass(frozen=True)
class Factors:
    """Why the engine is faster than plain transformers at one batch size: the runtime, and early exit on top of it."""

    runtime: str
    batch_size: int
    baseline: Way  # how the full model was run in this runtime
    by_runtime: float  # times as fast as plain transformers is the full model in this runtime
    by_exits: float  # times as fast as that is the engine
    milliseconds: float  # of the engine, a text


@dataclass(frozen=True)
class TimingRow:
    """One row of the table of wall-clock times."""

    runtime: str
    way: str
    speeds: Sequence[float | None]  # times as fast as plain transformers, by batch size


def batch_sizes(benchmark: Benchmark) -> list[int]:
    """List the batch sizes that were timed."""
    return list(dict.fromkeys(timing.batch_size for timing in benchmark.timings))


def timing_rows(benchmark: Benchmark) -> list[TimingRow]:
    """Tabulate wall-clock time: a row for every runtime and way, a column for every batch size."""
    speeds = {(timing.runtime, timing.way, timing.batch_size): timing.against_plain for timing in benchmark.timings}
    timed = {(runtime, way) for runtime, way, _ in speeds}
    return [
        TimingRow(runtime, way, [speeds.get((runtime, way, size)) for size in batch_sizes(benchmark)])
        for runtime in dict.fromkeys(timing.runtime for timing in benchmark.timings)
        for way in WAYS
        if (runtime, way) in timed
    ]


def factors_of(benchmark: Benchmark) -> list[Factors]:
    """Separate what a runtime gains from what exits add, for every runtime and batch size.

    Args:
        benchmark: What was timed.

    Returns:
        The factors, whose product is the engine's speed over plain transformers.
    """
    timings = {(timing.runtime, timing.batch_size, timing.way): timing for timing in benchmark.timings}
    factors = []
    for (runtime, batch_size, way), timing in timings.items():
        baselines = [timings[key] for known in WITHOUT_EXITS if (key := (runtime, batch_size, known)) in timings]
        if way == Way.ENGINE and baselines:
            factors.append(_factors(timing, baselines[0]))
    runtimes = list(dict.fromkeys(factor.runtime for factor in factors))
    return sorted(factors, key=lambda factor: (runtimes.index(factor.runtime), factor.batch_size))


def _factors(engine: Timing, baseline: Timing) -> Factors:
    """Divide the times of the engine and of the full model in the same runtime."""
    return Factors(
        engine.runtime,
        engine.batch_size,
        baseline.way,
        baseline.against_plain,
        baseline.milliseconds / engine.milliseconds,
        engine.milliseconds,
    )


def fastest(benchmark: Benchmark) -> Factors:
    """Return the factors of the runtime and batch size that take the least time a text."""
    return min(factors_of(benchmark), key=lambda factors: factors.milliseconds)


def time_by_part(benchmark: Benchmark) -> list[Breakdown]:
    """Divide the engine's time, as the tables state it, into parts.

    The parts were measured in a run of their own, with a clock around every step; their shares divide the time of the
    engine, so that figure and table agree.

    Args:
        benchmark: What was timed.

    Returns:
        Milliseconds a text by part, which add up to the engine's, for every runtime and batch size that was timed.
    """
    engine = {
        (timing.runtime, timing.batch_size): timing.milliseconds
        for timing in benchmark.timings
        if timing.way == Way.ENGINE
    }
    return [
        _scaled(breakdown, engine[breakdown.runtime, breakdown.batch_size])
        for breakdown in benchmark.breakdowns
        if (breakdown.runtime, breakdown.batch_size) in engine
    ]


def _scaled(breakdown: Breakdown, milliseconds: float) -> Breakdown:
    """Scale the parts so that they add up to the given time."""
    factor = milliseconds / (sum(breakdown.milliseconds.values()) or 1.0)
    parts = {part: factor * value for part, value in breakdown.milliseconds.items()}
    return Breakdown(breakdown.runtime, breakdown.batch_size, parts)
