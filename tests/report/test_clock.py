"""What a runtime gains and what exits add are never mixed, and parts of the time add up to the time in the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exitpoll.benchmark.timing import Breakdown, Way
from exitpoll.report.clock import batch_sizes, factors_of, fastest, time_by_part, timing_rows
from tests.report.samples import benchmark


def test_both_factors_at_every_batch_size():
    factors = factors_of(benchmark())
    assert [(row.runtime, row.batch_size) for row in factors] == [
        ("torch", 1),
        ("torch", 32),
        ("onnx", 1),
        ("onnx", 32),
    ]
    torch, onnx = factors[1], factors[3]
    assert (torch.baseline, torch.by_runtime, torch.by_exits) == (Way.PLAIN, 1.0, 1.6)
    assert (onnx.baseline, onnx.by_runtime, onnx.by_exits) == (Way.SINGLE_GRAPH, 2.0, 1.25)


def test_their_product_is_the_speed_in_the_table():
    given = benchmark()
    speeds = {(row.runtime, size): speed for row in timing_rows(given) if row.way == Way.ENGINE
              for size, speed in zip(batch_sizes(given), row.speeds, strict=True)}  # fmt: skip
    for row in factors_of(given):
        assert row.by_runtime * row.by_exits == pytest.approx(speeds[row.runtime, row.batch_size])


def test_the_fastest_is_that_of_the_least_time():
    assert fastest(benchmark()).runtime == "onnx"


def test_a_runtime_without_a_full_graph_is_compared_with_all_layers():
    given = benchmark()
    timings = [timing for timing in given.timings if timing.way != Way.SINGLE_GRAPH]
    assert factors_of(replace(given, timings=timings))[3].baseline == Way.FULL_DEPTH


def test_parts_add_up_to_the_time_in_the_tables():
    given = benchmark()
    engine = {(row.runtime, row.batch_size): row.milliseconds for row in given.timings if row.way == Way.ENGINE}
    parts = time_by_part(given)
    assert [(part.runtime, part.batch_size) for part in parts] == [
        ("torch", 1),
        ("torch", 32),
        ("onnx", 1),
        ("onnx", 32),
    ]
    for part in parts:
        assert sum(part.milliseconds.values()) == pytest.approx(engine[part.runtime, part.batch_size])
        assert part.milliseconds["layers"] == pytest.approx(9 * part.milliseconds["heads"])


def test_parts_of_what_was_not_timed_are_left_out():
    given = benchmark()
    more = replace(given, breakdowns=[*given.breakdowns, Breakdown("torch", 64, {"layers": 1.0})])
    assert len(time_by_part(more)) == 4
