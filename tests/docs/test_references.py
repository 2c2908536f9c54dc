"""Every paper that the source or the documentation cites is listed once in docs/references.md, in one form."""

from __future__ import annotations

import re

from tests.docs.conftest import ROOT

LETTER = r"[^\W\d_]"
NAMES = rf"[A-Z]{LETTER}+(?:-[A-Z]{LETTER}+)?"
CITATION = re.compile(rf"({NAMES} et al\.|{NAMES} and {NAMES}|{NAMES}),? \((\d{{4}})\)|\(({NAMES} et al\.), (\d{{4}})")
REFERENCES = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^- (.+? \(\d{4}\))\. (.*?)(?=\n- |\Z)", REFERENCES, flags=re.M | re.S)


def citations(text):
    """Papers that a text cites, as `Authors (year)`."""
    text = " ".join(text.split())
    return {f"{first or second} ({year or other})" for first, year, second, other in CITATION.findall(text)}


def test_what_is_cited_is_listed():
    listed = {name for name, _ in ENTRIES}
    places = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*.py"), ROOT / "README.md"]
    for path in places:
        assert citations(path.read_text(encoding="utf-8")) <= listed, path


def test_entries_have_one_form_and_stand_once_in_order():
    names = [name for name, _ in ENTRIES]
    assert len(names) >= 20
    assert names == sorted(set(names))
    for name, entry in ENTRIES:
        assert re.search(r"\*.+\*.* \[.+\]\(https://\S+\)$", " ".join(entry.split())), name
        first = re.split(r" et al\.| and | \(", name)[0]
        assert first in entry, name


def test_citations_are_recognized():
    text = "Sun et al. (2021), Eq. 14; Clopper and\n    Pearson (1934); Gorodkin (2004); (Guo et al., 2017)"
    expected = {"Sun et al. (2021)", "Clopper and Pearson (1934)", "Gorodkin (2004)", "Guo et al. (2017)"}
    assert citations(text) == expected
