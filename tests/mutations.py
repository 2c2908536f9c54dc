"""Mutations of JSON files, for tests that what reads them refuses in one line whatever is broken."""

from __future__ import annotations

import json

from hypothesis import strategies as st

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


def mutations(content):
    """Mutations of a JSON object as text: other values at any place, fields that are missing or new, cut files."""
    text = json.dumps(content)
    places = sorted(paths_in(content), key=len)
    keys = sorted({str(place[-1]) for place in places if place} | {"attn_implementation", "num_labels", "dtype"})
    values = st.builds(lambda place, value: json.dumps(changed(content, place, value)), st.sampled_from(places), VALUES)
    fields = st.builds(lambda name, value: json.dumps(content | {name: value}), st.sampled_from(keys), VALUES)
    missing = st.sampled_from(sorted(content)).map(
        lambda name: json.dumps({key: value for key, value in content.items() if key != name})
    )
    cut = st.integers(0, len(text) - 1).map(lambda end: text[:end])
    return st.one_of(values, values, fields, missing, cut)


def plausible(content, words):
    """Mutations of a JSON object as text in which a number is another number, or a word another word."""
    numbers = st.one_of(st.integers(-3, 500), st.floats(-3, 500, allow_nan=False))
    places = [place for place in paths_in(content) if isinstance(value_at(content, place), int | float | str)]

    def mutate(place, number, word):
        value = word if isinstance(value_at(content, place), str) else number
        return json.dumps(changed(content, place, value))

    return st.builds(mutate, st.sampled_from(places), numbers, st.sampled_from(words))


def value_at(content, place):
    """The value at one place of a JSON object."""
    for key in place:
        content = content[key]
    return content
