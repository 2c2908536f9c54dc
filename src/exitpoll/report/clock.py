"""Wall-clock time on the page: what the runtime gains without exits, what exits add, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exitpoll.benchmark.parts import Breakdown
from exitpoll.benchmark.timing import Benchmark, Gain, Way

WAYS = tuple(way for way in Way if way != Way.NO_REFILL)  # as the page orders them


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


def gains_of(benchmark: Benchmark) -> list[Gain]:
    """Return what every runtime gains without exits and what early exit adds, by runtime and batch size."""
    runtimes = list(dict.fromkeys(gain.runtime for gain in benchmark.gains))
    return sorted(benchmark.gains, key=lambda gain: (runtimes.index(gain.runtime), gain.batch_size))


def fastest(benchmark: Benchmark) -> Gain:
    """Return the gains of the runtime and batch size in which the engine takes the least time a text."""
    times = _engine_milliseconds(benchmark)
    return min(benchmark.gains, key=lambda gain: times[gain.runtime, gain.batch_size])


def time_by_part(benchmark: Benchmark) -> list[Breakdown]:
    """Divide the engine's time, as the tables state it, into parts.

    The parts were measured in a run of their own, with a clock around every step; their shares divide the time of the
    engine, so that figure and table agree.

    Args:
        benchmark: What was timed.

    Returns:
        Milliseconds a text by part, which add up to the engine's, for every runtime and batch size that was timed.
    """
    engine = _engine_milliseconds(benchmark)
    return [
        _scaled(breakdown, engine[breakdown.runtime, breakdown.batch_size])
        for breakdown in benchmark.breakdowns
        if (breakdown.runtime, breakdown.batch_size) in engine
    ]


def _engine_milliseconds(benchmark: Benchmark) -> dict[tuple[str, int], float]:
    """Return the engine's time a text by runtime and batch size."""
    timings = (timing for timing in benchmark.timings if timing.way == Way.ENGINE)
    return {(timing.runtime, timing.batch_size): timing.milliseconds for timing in timings}


def _scaled(breakdown: Breakdown, milliseconds: float) -> Breakdown:
    """Scale the parts so that they add up to the given time."""
    factor = milliseconds / (sum(breakdown.milliseconds.values()) or 1.0)
    parts = {part: factor * value for part, value in breakdown.milliseconds.items()}
    return Breakdown(breakdown.runtime, breakdown.batch_size, parts)
