"""Files of a model folder that are broken in any way are refused in one line, whatever reads them."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exitpoll import EarlyExitModel, InputError, load_model
from exitpoll.files import read_json
from exitpoll.models.card import model_card
from exitpoll.models.folder import read_training
from exitpoll.models.pretrained import read_any_config

MUTATIONS = settings(
    max_examples=2000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 5),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([2**31, 2**63, 10**30, "bert", "../x", "LABEL_0", "regression", "cuda", "float16", "\ud800", "\0"]),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def paths_in(content, path=()):
    """The places of all values inside a JSON object."""
    yield path
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from paths_in(value, (*path, key))


def changed(content, path, value):
    """A copy of a JSON object with another value at one place."""
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = changed(content[path[0]], path[1:], value)
    return copy


def mutations(path):
    """Mutations of a JSON file as text: other values at any place, fields that are missing or new, cut files."""
    content = read_json(path)
    text = path.read_text()
    places = sorted(paths_in(content), key=len)
    keys = sorted({str(place[-1]) for place in places if place} | {"attn_implementation", "num_labels", "dtype"})
    values = st.builds(lambda place, value: json.dumps(changed(content, place, value)), st.sampled_from(places), VALUES)
    fields = st.builds(lambda name, value: json.dumps(content | {name: value}), st.sampled_from(keys), VALUES)
    missing = st.sampled_from(sorted(content)).map(
        lambda name: json.dumps({key: value for key, value in content.items() if key != name})
    )
    cut = st.integers(0, len(text) - 1).map(lambda end: text[:end])
    return st.one_of(values, values, fields, missing, cut)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model_folder):
    return shutil.copytree(model_folder, tmp_path_factory.mktemp("fuzz") / "model")


def refused_or_read(read, *arguments):
    """Return whether a reader accepts; anything but an InputError fails the test."""
    try:
        read(*arguments)
    except InputError:
        return False
    return True


@pytest.mark.slow
def test_config(folder, model_folder):
    path, seen = folder / "config.json", {True: 0, False: 0}

    @MUTATIONS
    @given(text=mutations(model_folder / "config.json"))
    def check(text):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        accepted = refused_or_read(read_any_config, folder)
        seen[accepted] += 1
        if accepted and seen[accepted] % 10 == 0:  # building a model takes longer than reading its configuration
            refused_or_read(EarlyExitModel.from_pretrained, folder)
        refused_or_read(model_card, folder, "name")

    check()
    assert min(seen.values()) > 200


@pytest.mark.slow
def test_training_summary(folder, model_folder):
    shutil.copy(model_folder / "config.json", folder)
    path, seen = folder / "training.json", {True: 0, False: 0}

    @MUTATIONS
    @given(text=mutations(model_folder / "training.json"))
    def check(text):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        seen[refused_or_read(read_training, folder)] += 1
        model_card(folder, "name")

    check()
    assert min(seen.values()) > 200
    path.write_text('{"settings": 3}')
    with pytest.raises(InputError, match="is broken: settings is 3"):
        load_model(folder)
