"""What a user is told at the end of an adoption."""

from __future__ import annotations

from pathlib import Path

import pytest

from exitpoll.adoption.outcome import Adopted, InRuntime


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
        adapted=adapted,
        seconds=1.0,
    )


@pytest.mark.parametrize("adapted_too", [True, False])
def test_an_encoder_that_moved_in_vain_is_not_said_to_answer_as_the_original(adapted_too):
    lines = adopted(met=False, adapted=adapted_too).lines()
    assert lines[0].startswith("no guarantee with early exit")
    assert any("even at full depth some answers are not the original's" in line for line in lines) is adapted_too


@pytest.mark.parametrize("adapted_too", [True, False])
def test_adapt_is_advised_to_those_who_have_not_tried_it(adapted_too):
    lines = adopted(met=True, adapted=adapted_too, speedup=1.05, oracle=1.2).lines()
    assert lines[0].startswith("guaranteed: answers differ")
    assert "hardly worth having" in lines[1]
    assert lines[1].endswith("try adapt") is not adapted_too
