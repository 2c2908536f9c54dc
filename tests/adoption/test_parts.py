"""Texts are divided at random into those that teach, choose and certify."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from exitpoll import InputError, Texts
from exitpoll.adoption import parts
from exitpoll.adoption.parts import divide
from exitpoll.decide.bounds import texts_needed
from exitpoll.decide.certificate import Guarantee

GUARANTEE = Guarantee(at_most=0.05)


def numbered(count):
    return Texts([f"text {number}" for number in range(count)])


def test_every_text_is_in_one_part_and_the_seed_decides_in_which():
    divided = divide(numbered(400), GUARANTEE, 0)
    assert divided.sizes == {"teach": 200, "choose": 60, "certify": 140}
    everything = [*divided.teach, *divided.choose, *divided.certify]
    assert Counter(everything) == Counter(numbered(400))
    assert divide(numbered(400), GUARANTEE, 0) == divided
    assert divide(numbered(400), GUARANTEE, 1) != divided


def test_more_texts_than_are_of_use_are_left_over(monkeypatch):
    monkeypatch.setattr(parts, "MOST", {"teach": 50, "choose": 20, "certify": 100})
    assert divide(numbered(1000), GUARANTEE, 0).sizes == {"teach": 50, "choose": 20, "certify": 100}


def test_too_few_texts_are_refused_and_the_number_that_would_do_is_named():
    needed = texts_needed("disagreement", 0.05, 0.975)  # of two runtimes the faster is taken
    with pytest.raises(InputError, match=r"100 texts are too few .*: (\d+) or more are needed") as refused:
        divide(numbered(100), GUARANTEE, 0)
    least = int(str(refused.value).split(": ")[1].split()[0])
    assert len(divide(numbered(least), GUARANTEE, 0).certify) >= needed
    with pytest.raises(InputError):
        divide(numbered(least - 1), GUARANTEE, 0)


def test_pairs_and_labels_stay_with_their_texts():
    texts = Texts([f"a{row}" for row in range(300)], [f"b{row}" for row in range(300)], np.arange(300))
    for part in (divided := divide(texts, GUARANTEE, 0)).teach, divided.choose, divided.certify:
        assert list(part) == [(f"a{row}", f"b{row}") for row in part.labels]
