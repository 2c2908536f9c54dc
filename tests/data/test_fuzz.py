"""Whatever a file holds, it is read, or refused with a message of one line."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exitpoll import InputError, load_splits
from exitpoll.data.readers import read_file

KINDS = ("csv", "tsv", "jsonl", "json", "txt", "parquet", "csv.gz", "csv.zst")

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4))
values = st.recursive(scalars, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(), part, max_size=2))
labels = st.one_of(values, st.sampled_from(["pos", "neg", "1", "1.0", 1, 1.5, "nan", ["a"], []]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("kind", KINDS)
@given(content=st.one_of(st.binary(), st.text('text,label\n\t;"{}[]: 1\r').map(str.encode)))
def test_any_bytes(folder, kind, content):
    path = folder / f"a.{kind}"
    path.write_bytes(content)
    with suppress(InputError):
        assert read_file(path)


@given(column=st.lists(labels, min_size=1, max_size=12))
def test_any_labels(folder, column):
    path = folder / "a.jsonl"
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(column * 3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with suppress(InputError):
        assert load_splits(path).train.labels is not None


@given(content=values)
def test_any_json(folder, content):
    (folder / "a.json").write_text(json.dumps(content))
    with suppress(InputError):
        load_splits(folder / "a.json")
