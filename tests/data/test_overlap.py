"""Texts of a training are recognized again, whatever their case and spacing, from a digest of constant size."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll import InputError, Texts
from exitpoll.data import overlap
from exitpoll.data.overlap import KEPT, Overlap, TextDigest


def test_texts_are_recognized_in_any_case_and_spacing():
    digest = TextDigest.of(Texts(["A good  film", "bad plot"]))
    seen = digest.overlap(Texts(["a GOOD\tfilm ", "good film", "bad plot", "bad plot"]))
    assert seen == Overlap(checked=4, shared=3)
    assert seen.share == 0.75
    assert digest.overlap(Texts(["\ud800"])).shared == 0  # no valid Unicode, but a text


def test_pairs_are_pairs():
    digest = TextDigest.of(Texts(["a b"], ["c"]))
    assert digest.overlap(Texts(["a b", "a", "c"], ["c", "b c", "a b"])).shared == 1
    assert digest.overlap(Texts(["a b c", "a b"])).shared == 0


def test_a_digest_survives_json():
    digest = TextDigest.of(Texts(["a", "b", "b"]))
    again = TextDigest.from_dict(json.loads(json.dumps(digest.to_dict())))
    assert again.texts == digest.texts == 2
    assert np.array_equal(again.hashes, digest.hashes)


def test_a_large_set_is_sampled_and_the_share_estimated(monkeypatch):
    monkeypatch.setattr(overlap, "KEPT", 500)
    digest = TextDigest.of(Texts([f"text {number}" for number in range(10_000)]))
    assert len(digest.hashes) == 500
    half_known = Texts([f"text {number}" for number in range(5_000, 15_000)])
    seen = digest.overlap(half_known)
    assert 350 < seen.checked < 650
    assert seen.share == pytest.approx(0.5, abs=0.08)
    assert len(json.dumps(digest.to_dict())) < 12 * 500


def test_no_text_at_all():
    digest = TextDigest.of(Texts([]))
    assert digest.overlap(Texts(["a"])) == Overlap(1, 0)
    assert TextDigest.of(Texts(["a"])).overlap(Texts([])).share == 0.0


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {"texts": 3},
        {"texts": "3", "hashes": ""},
        {"texts": 1, "hashes": "§"},
        {"texts": 1, "hashes": "AAAA"},
        {"texts": 0, "hashes": "AAAAAAAAAAA="},
        {"texts": 9, "hashes": "AAAAAAAAAAA="},
        {"texts": 2, "hashes": "AAAAAAAAAAAAAAAAAAAAAA=="},
        {"texts": KEPT + 1, "hashes": "AAAAAAAAAAA=" * (KEPT + 1)},
    ],
)
def test_a_broken_digest_is_refused(content):
    with pytest.raises(InputError, match="digest of"):
        TextDigest.from_dict(content)


@given(known=st.lists(st.text(max_size=8), max_size=20), asked=st.lists(st.text(max_size=8), max_size=20))
def test_small_sets_are_counted_exactly(known, asked):
    def plain(text):
        return " ".join(text.casefold().split())

    seen = TextDigest.of(Texts(known)).overlap(Texts(asked))
    assert seen == Overlap(len(asked), sum(plain(text) in set(map(plain, known)) for text in asked))
