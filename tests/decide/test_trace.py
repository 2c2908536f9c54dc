"""A trace survives its file, larger than memory or broken."""

from __future__ import annotations

import json
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from exitpoll.decide.costs import ExitCosts
from exitpoll.decide.trace import Trace, create
from exitpoll.errors import InputError


def some(texts=7, exits=3, classes=4, labels=True, dtype=np.float32, lengths=False):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(texts, exits, classes)).astype(dtype)
    gold = generator.integers(classes, size=texts) if labels else None
    tokens = generator.integers(1, 99, size=texts) if lengths else None
    return Trace(logits, gold, (2, 4, 6)[:exits], {"model": "ä"}, tokens)


@given(
    texts=st.integers(0, 9),
    labels=st.booleans(),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    lengths=st.booleans(),
)
def test_round_trip(tmp_path_factory, texts, labels, dtype, lengths):
    path = tmp_path_factory.mktemp("trace") / "a.safetensors"
    trace = some(texts, labels=labels, dtype=dtype, lengths=lengths)
    trace.save(path)
    loaded = Trace.load(path)
    np.testing.assert_array_equal(loaded.logits, trace.logits)
    assert loaded.logits.dtype == dtype
    assert (loaded.labels is None) == (trace.labels is None)
    if labels:
        np.testing.assert_array_equal(loaded.labels, trace.labels)
    assert (loaded.lengths is None) == (not lengths)
    if lengths:
        np.testing.assert_array_equal(loaded.lengths, trace.lengths)
    assert list(loaded.exit_layers) == [2, 4, 6]
    assert loaded.about == {"model": "ä"}


def test_the_file_is_safetensors(tmp_path):
    some().save(tmp_path / "a.safetensors")
    arrays = load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(arrays["logits"], some().logits)
    np.testing.assert_array_equal(arrays["labels"], some().labels)


def test_loading_maps_and_does_not_read(tmp_path):
    some().save(tmp_path / "a.safetensors")
    assert isinstance(Trace.load(tmp_path / "a.safetensors").logits, np.memmap)


def test_rows_may_come_in_any_order(tmp_path):
    trace = some()
    shapes = {"logits": (trace.logits.shape, np.float32)}
    with create(tmp_path / "a", shapes, exit_layers=trace.exit_layers, about={}) as arrays:
        for row in (3, 0, 6, 2, 5, 1, 4):
            arrays["logits"][row] = trace.logits[row]
    np.testing.assert_array_equal(Trace.load(tmp_path / "a").logits, trace.logits)


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    some().save(tmp_path / "a")
    with (
        pytest.raises(KeyboardInterrupt),
        create(tmp_path / "a", {"logits": ((9, 1, 2), np.float32)}, exit_layers=[1], about={}),
    ):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert len(Trace.load(tmp_path / "a")) == 7


def test_chunks_hold_every_text_once():
    trace = some(10)
    parts = list(trace.chunks(4 * trace.logits[0].size + 1))
    assert [len(part) for part in parts] == [4, 4, 2]
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts]), trace.labels)


def test_lengths_go_with_their_texts():
    trace = some(lengths=True)
    assert trace.select(np.array([4, 1])).lengths.tolist() == trace.lengths[[4, 1]].tolist()


def test_layers_are_numbered_by_default():
    assert Trace(np.zeros((2, 3, 2))).exit_layers == (1, 2, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits": np.zeros((2, 3))}, r"must be \(texts, exits, classes\), not of shape \(2, 3\)"),
        ({"logits": np.zeros((2, 3, 2)), "exit_layers": [1, 2]}, "2 layers were named for 3 exits"),
        ({"logits": np.zeros((2, 3, 2)), "labels": np.zeros(5)}, "5 labels for 2 texts"),
        ({"logits": np.zeros((2, 3, 2)), "lengths": np.zeros(3)}, r"lengths of shape \(3,\) do not fit 2 texts"),
        ({"logits": np.zeros((2, 3, 2)), "exit_layers": [2, 2, 4]}, r"must rise from 0 or more .* are \[2, 2, 4\]"),
        ({"logits": np.zeros((2, 1, 2)), "exit_layers": [0]}, r"to 1 or more, and are \[0\]"),
    ],
)
def test_refuses_what_does_not_belong_together(arguments, message):
    with pytest.raises(InputError, match=message):
        Trace(**arguments)


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_a_file_cut_short_is_refused(tmp_path, cut):
    some().save(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(content[:cut])
    with pytest.raises(InputError, match="is not a trace, or a broken one"):
        Trace.load(tmp_path / "a")


def test_other_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"logits": np.zeros((2, 3, 2))}, tmp_path / "a")
    with pytest.raises(InputError, match="is not a trace of this version of exitpoll"):
        Trace.load(tmp_path / "a")
    with pytest.raises(InputError, match="does not exist"):
        Trace.load(tmp_path / "none")


@pytest.mark.parametrize("change", [{"dtype": "I7"}, {"shape": [2, 2, 2]}, {"data_offsets": [0]}, {"shape": "wide"}])
def test_a_header_that_does_not_fit_is_refused(tmp_path, change):
    some().save(tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["logits"] |= change
    text = json.dumps(header).encode()
    (tmp_path / "a").write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    with pytest.raises(InputError, match="is not a trace, or a broken one"):
        Trace.load(tmp_path / "a")


def test_lists_and_small_types_will_do(tmp_path):
    trace = Trace([[[1, 2]], [[3, 4]]], np.array([0, 1], dtype=np.int32))
    trace.save(tmp_path / "a")
    again = Trace.load(tmp_path / "a")
    assert again.logits.dtype == np.float64
    assert again.labels.tolist() == [0, 1]


def test_labels_beyond_the_classes():
    with pytest.raises(InputError, match="labels must be between 0 and 1, and are between 0 and 2"):
        Trace(np.zeros((2, 1, 2)), np.array([0, 2])).gold("a test")
    with pytest.raises(InputError, match="a test needs labels"):
        Trace(np.zeros((2, 1, 2))).gold("a test")


@pytest.mark.parametrize(
    ("trace", "kind"),
    [
        (Trace(np.zeros((2, 1, 3))), "single_label_classification"),
        (Trace(np.zeros((2, 1, 1))), "regression"),
        (Trace(np.zeros((2, 1, 3)), np.zeros((2, 3))), "multi_label_classification"),
        (
            Trace(np.zeros((2, 1, 1)), about={"problem_type": "multi_label_classification"}),
            "multi_label_classification",
        ),
    ],
)
def test_the_problem_type_is_noted_or_told_from_the_shapes(trace, kind):
    assert trace.problem_type == kind


class TestSomeExits:
    ABOUT: ClassVar = {"milliseconds": [3.0, 6.0, 9.0, 12.0], "head_milliseconds": 1.0, "data": "toy"}
    TRACE = Trace(np.arange(24.0).reshape(3, 4, 2), np.array([0, 1, 0]), (1, 3, 4, 6), ABOUT, np.array([5, 6, 7]))

    @pytest.mark.parametrize(("layers", "columns"), [((1, 4, 6), [0, 2, 3]), ((3, 6), [1, 3]), ((6,), [3])])
    def test_columns_and_times_are_reduced(self, layers, columns):
        some = self.TRACE.at_exits(layers)
        np.testing.assert_array_equal(some.logits, self.TRACE.logits[:, columns])
        assert some.exit_layers == some.some_exit_layers == layers
        assert (some.lengths is self.TRACE.lengths, some.about["data"]) == (True, "toy")
        expected = [2 * (column + 1) + heads for heads, column in enumerate(columns, start=1)]  # a head takes 1
        assert some.about["milliseconds"] == expected
        np.testing.assert_allclose(
            ExitCosts.measured(layers, some.about).of(layers), ExitCosts.measured((1, 3, 4, 6), self.ABOUT).of(layers)
        )

    def test_step_by_step_is_as_good_as_at_once(self, tmp_path):
        again = self.TRACE.at_exits((1, 4, 6)).at_exits((4, 6))
        assert again.about == self.TRACE.at_exits((4, 6)).about
        again.save(tmp_path / "trace")
        assert list(Trace.load(tmp_path / "trace").some_exit_layers) == [4, 6]

    def test_all_exits_are_the_trace_itself(self):
        assert self.TRACE.at_exits((1, 3, 4, 6)) is self.TRACE
        assert self.TRACE.at_exits(None) is self.TRACE
        assert self.TRACE.some_exit_layers is None

    def test_evenly_spaced_exits_are_not_copied(self):
        assert np.shares_memory(self.TRACE.at_exits((3, 6)).logits, self.TRACE.logits)

    @pytest.mark.parametrize(
        ("layers", "message"), [((2, 6), "no exit after layer 2"), ((1, 4), "must end with 6"), ((), "must be layers")]
    )
    def test_refuses(self, layers, message):
        with pytest.raises(InputError, match=message):
            self.TRACE.at_exits(layers)


class TestCosts:
    def test_in_layers_heads_are_free(self):
        costs = ExitCosts.in_layers((2, 4, 12))
        assert costs.of((2, 12)).tolist() == [2, 12]
        assert (costs.full, costs.unit) == (12, "layers")

    def test_measured(self):
        costs = ExitCosts.measured((2, 4, 12), {"milliseconds": [3.0, 6.0, 15.0], "head_milliseconds": 1.0})
        assert costs.of((2, 4, 12)).tolist() == [3, 6, 15]
        assert costs.of((4, 12)).tolist() == [5, 14]
        assert costs.static.tolist() == [3, 5, 13]
        assert (costs.full, costs.unit) == (13, "milliseconds")

    def test_times_of_heads_that_are_not_known_are_part_of_the_layers(self):
        costs = ExitCosts.measured((2, 4, 12), {"milliseconds": [3.0, 6.0, 15.0]})
        assert costs.of((4, 12)).tolist() == [6, 15]
        with pytest.raises(InputError, match="record it again"):
            ExitCosts.measured((2, 4, 12), {"milliseconds": [3.0, 6.0, 15.0]}, needs_head=True)

    @pytest.mark.parametrize(
        ("about", "message"),
        [
            ({}, "has no times"),
            ({"milliseconds": [1.0]}, "has no times"),
            ({"milliseconds": [1.0, -2.0]}, "must be milliseconds above 0"),
            ({"milliseconds": [1.0, 2.0], "head_milliseconds": "1"}, "time of a head"),
            ({"milliseconds": [1.0, 2.0], "head_milliseconds": float("nan")}, "time of a head"),
        ],
    )
    def test_refuses(self, about, message):
        with pytest.raises(InputError, match=message):
            ExitCosts.measured((1, 2), about)
