"""A trace survives its file, larger than memory or broken."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

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
        ({"logits": np.zeros((2, 3, 2)), "exit_layers": [2, 2, 4]}, r"must rise from 1 on, and are \[2, 2, 4\]"),
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
