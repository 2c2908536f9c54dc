"""What a user is told at the end of an adoption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exitpoll.adoption.outcome import Adapting, Adopted, Choice, InRuntime, fastest
from exitpoll.benchmark.timing import Benchmark, Timing, Way


def adopted(*, met: bool, adapted: bool, speedup: float = 1.0, oracle: float = 3.0) -> Adopted:
    return Adopted(
        folder=Path("fast"),
        classifier="mine",
        guarantee="answers differ from the original classifier's on at most 1 % of texts, with 95 % confidence",
        texts={"teach": 10, "choose": 5, "certify": 5},
        runtime="torch",
        in_runtimes=[InRuntime("torch", met, speedup, None, None, "max_prob")],
        gains=[],
        oracle_speedup=oracle,
        adapting=Adapting(frozen=1.5, adapted=2.0) if adapted else None,
        seconds=1.0,
    )


@pytest.mark.parametrize("adapted_too", [True, False])
def test_an_encoder_that_moved_in_vain_is_not_said_to_answer_as_the_original(adapted_too):
    lines = adopted(met=False, adapted=adapted_too).lines()
    assert lines[0].startswith("no guarantee with early exit")
    assert any("even at full depth some answers are not the original's" in line for line in lines) is adapted_too


@pytest.mark.parametrize(("speedup", "says"), [(2.0, "gains: 2.0 × fewer layers"), (1.4, "does not pay")])
def test_what_training_the_encoder_too_gains_is_said(speedup, says):
    adapting = Adapting(frozen=1.5, adapted=speedup)
    result = replace(adopted(met=True, adapted=False), adapting=adapting)
    assert result.adapted is adapting.pays is (speedup > 1.5)
    assert any(says in line and "1.5 × with the encoder as it was" in line for line in result.lines())


@pytest.mark.parametrize("adapted_too", [True, False])
def test_adapt_is_advised_to_those_who_have_not_tried_it(adapted_too):
    lines = adopted(met=True, adapted=adapted_too, speedup=1.05, oracle=1.2).lines()
    assert lines[0].startswith("guaranteed: answers differ")
    assert "hardly worth having" in lines[1]
    assert lines[1].endswith("try adapt") is not adapted_too


def timed(**speeds: tuple[float, float]) -> Benchmark:
    """Timings of exits and of all layers in some runtimes, as times the speed of plain transformers."""
    timings = [
        Timing(runtime.replace("_", "-"), way, size, 1.0, 12.0, against_plain=speed, against_full=1.0, of_layers=1.0)
        for runtime, both in speeds.items()
        for way, speed in zip((Way.ENGINE, Way.FULL_DEPTH), both, strict=True)
        for size in (1, 32)
    ]
    return Benchmark(texts=8, mean_tokens=9.0, threads=1, layers=12, timings=timings, breakdowns=[])


def certified(*runtimes: str) -> list[InRuntime]:
    names = ("torch", "onnx", "onnx-int8")
    return [InRuntime(name, name in runtimes, 2.0, 0.0, 0.01, "max_prob", name in runtimes) for name in names]


FLOAT32 = ("torch", "onnx")


@pytest.mark.parametrize(
    ("met", "same", "speeds", "expected"),
    [
        ((*FLOAT32, "onnx-int8"), True, {"torch": (2, 1), "onnx": (6, 3), "onnx_int8": (9, 5)}, ("onnx-int8", True)),
        (FLOAT32, True, {"torch": (2, 1), "onnx": (6, 3), "onnx_int8": (9, 7)}, ("onnx", True)),
        (FLOAT32, True, {"torch": (2, 1), "onnx": (2.8, 3)}, ("onnx", False)),  # exits cost more than they save
        ((), True, {"torch": (1, 1), "onnx": (3, 3), "onnx_int8": (5, 5)}, ("onnx", False)),
        ((), False, {"torch": (1, 1), "onnx": (3, 3)}, ("torch", False)),  # adapted: full depth answers otherwise
        (("onnx-int8",), True, {"torch": (1, 1), "onnx": (3, 3), "onnx_int8": (4, 5)}, ("onnx-int8", False)),
    ],
)
def test_the_fastest_way_that_keeps_the_guarantee_is_taken(met, same, speeds, expected):
    rows = certified(*met)
    assert fastest(rows, timed(**speeds), same_full_depth=same) == Choice(*expected)
