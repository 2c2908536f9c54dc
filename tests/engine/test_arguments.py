"""Texts are taken from the containers that people have, and never from what has no order or is no text."""

from __future__ import annotations

import numpy as np
import pyarrow
import pytest

from exitpoll import Engine, InputError, Policy
from exitpoll.engine.arguments import iterate_texts, to_integer, to_text
from tests.numbers_runtime import numbers_model

pandas = pytest.importorskip("pandas")

TEXTS = ["good film", "bad film", "so so"]
FRAME = pandas.DataFrame({"id": [7, 8, 9], "text": TEXTS, "label": ["a", "b", "c"]}, index=[3, 1, 2])


@pytest.mark.parametrize(
    "given",
    [
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        pandas.Series(TEXTS, index=[2, 0, 1]),
        pandas.Series(TEXTS, dtype="string"),
        FRAME,
        FRAME["text"],
        pyarrow.table({"id": [7, 8, 9], "text": TEXTS}),
        dict.fromkeys(TEXTS).keys(),
    ],
)
def test_containers(given):
    assert list(iterate_texts(given)) == TEXTS
    engine = Engine(numbers_model(), Policy("max_prob", 0.9))
    assert engine(given) == engine(TEXTS)


def test_generators_are_read_as_texts_are_needed():
    read = []
    texts = (read.append(number) or f"text {number}" for number in range(20_000))
    stream = Engine(numbers_model(), Policy("max_prob", 0.0)).stream(texts)
    next(stream)
    assert len(read) < 5000


PAIRS = [("a b", "c"), ("d", "e f")]


@pytest.mark.parametrize(
    "given",
    [
        PAIRS,
        [list(pair) for pair in PAIRS],
        np.array(PAIRS),
        pandas.DataFrame({"premise": ["a b", "d"], "hypothesis": ["c", "e f"], "text": ["x", "y"]}),
    ],
)
def test_pairs(given):
    assert [to_text("here", text) for text in iterate_texts(given)] == PAIRS
    engine = Engine(numbers_model())
    assert engine(given) == engine(PAIRS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("one text", "give a list of texts, not one text"),
        (b"one text", "give a list of texts, not one text"),
        ({"a", "b"}, "give a list of texts, not a set, whose order is arbitrary"),
        (frozenset({"a"}), "give a list of texts, not a frozenset"),
        ({"text": "a"}, "give a list of texts, not dict"),
        (None, "give a list of texts, not NoneType"),
        (7, "give a list of texts, not int"),
        (np.array("one text"), "give a list of texts, not ndarray"),
        (FRAME[["id", "label"]], r"the table has no text column among id, label; give one column: table\['id'\]"),
        (pandas.concat([FRAME, FRAME], axis=1), "the table has two columns named 'text'; rename one"),
    ],
)
def test_refusals(given, message):
    with pytest.raises(InputError, match=message):
        Engine(numbers_model())(given)


def test_a_missing_text_is_named():
    with pytest.raises(InputError, match="text 1 is empty, or neither a text nor a pair of texts: nan"):
        Engine(numbers_model())(pandas.Series(["good", None, "bad"], dtype=object).fillna(np.nan))


def test_integers():
    assert to_integer("threads", np.int64(2)) == 2
    assert type(to_integer("threads", np.int8(2))) is int
    assert Engine(numbers_model())(TEXTS, batch_size=np.int32(2)) == Engine(numbers_model())(TEXTS)
    for wrong in (0, -1, 2.0, "2", None, True, np.bool_(True), np.array([1, 2])):
        with pytest.raises(InputError, match=r"threads .* must be an integer, between 1 and 8"):
            to_integer("threads", wrong, at_most=8)
    with pytest.raises(InputError, match="batch_size '2' must be an integer, at least 1"):
        Engine(numbers_model())(TEXTS, batch_size="2")
