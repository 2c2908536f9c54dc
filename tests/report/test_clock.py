"""What a runtime gains and what exits add are never mixed, and parts of the time add up to the time in the tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exitpoll.benchmark.parts import Breakdown
from exitpoll.benchmark.timing import Way
from exitpoll.report.clock import batch_sizes, fastest, gains_of, time_by_part, timing_rows
from tests.report.samples import benchmark


def test_both_gains_at_every_batch_size():
    gains = gains_of(benchmark())
    assert [(gain.runtime, gain.batch_size) for gain in gains] == [
        ("torch", 1),
        ("torch", 32),
        ("onnx", 1),
        ("onnx", 32),
    ]
    torch, onnx = gains[1], gains[3]
    assert (torch.without_exits.value, torch.by_exits.value) == (1.0, 1.6)
    assert (onnx.without_exits.value, onnx.by_exits.value) == (2.0, 1.25)


def test_their_product_is_the_speed_in_the_table():
    given = benchmark()
    speeds = {(row.runtime, size): speed for row in timing_rows(given) if row.way == Way.ENGINE
              for size, speed in zip(batch_sizes(given), row.speeds, strict=True)}  # fmt: skip
    for gain in gains_of(given):
        assert gain.without_exits.value * gain.by_exits.value == pytest.approx(speeds[gain.runtime, gain.batch_size])


def test_the_fastest_is_that_of_the_least_time():
    assert fastest(benchmark()).runtime == "onnx"


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
