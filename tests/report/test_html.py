"""A report is one page that needs nothing else, tells the truth about every text, and shows no error in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from exitpoll import InputError, Policy, Trace
from exitpoll.report import html as report
from exitpoll.report.html import check_place, check_same_texts, gather, write_report
from tests.report.samples import LAYERS, NAMES, benchmark, example, material
from tests.samples import certified

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(material(timed=benchmark()), tmp_path_factory.mktemp("report"))


def data_of(page):
    [found] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), flags=re.S)
    return json.loads(found)


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]+"', text)
    assert "url(http" not in text
    assert "@import" not in text


def test_figures_stand_beside_it(page):
    for name in ("curves", "depths", "exits", "agreement", "parts"):
        assert (page.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (page.parent / f"{name}.svg").read_text()
    assert page.read_text().count("<svg") == 5
    assert "currentColor" in page.read_text()
    assert "#010203" not in page.read_text()


def test_every_text_is_there_with_what_each_exit_said(page):
    trace, texts = example()
    found = data_of(page)
    decisions = Policy("max_prob", 0.9).decide(trace)
    assert found["layers"] == list(LAYERS)
    assert found["signs"] == ["B", "G"]
    assert [row["said"] for row in found["rows"]] == trace.logits.argmax(-1).tolist()
    assert [row["exit"] for row in found["rows"]] == decisions.exit.tolist()
    assert [row["answer"] for row in found["rows"]] == decisions.answer.tolist()
    assert [row["gold"] for row in found["rows"]] == trace.labels.tolist()
    assert found["rows"][0]["text"] == texts[0]
    assert found["rows"][3]["text"].endswith(" …")


def test_the_figures_in_words_are_those_of_the_evaluation(page):
    found = material()
    text = page.read_text()
    assert f"<b>{100 * found.evaluation.rows[0].score.value:.1f} %</b>" in text
    assert f"<b>{found.evaluation.rows[0].speedup:.2f} ×</b>" in text
    assert "never calibrated, so nothing is guaranteed" in text
    assert "<p>a note</p>" in text


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_other_kinds_of_tasks(problem_type, tmp_path):
    page = write_report(material(problem_type), tmp_path)
    found = data_of(page)
    assert found["signs"] == []
    answers = set(found["answers"])
    assert answers & ({"(none)", "bad", "good", "bad, good"} if problem_type != "regression" else {"0.00", "1.00"})
    assert found["values"] == (problem_type == "regression")
    assert (tmp_path / "agreement.png").exists() == (problem_type != "regression")
    assert "Wall-clock time</h2>" not in page.read_text()


def test_what_cannot_be_reported():
    trace, texts = example()
    with pytest.raises(InputError, match="have no labels"):
        gather("x", NAMES, Policy("max_prob", 0.9), Trace(trace.logits, None, LAYERS, trace.about), texts)
    with pytest.raises(InputError, match="the trace is of 120 texts, and 3 were read"):
        gather("x", NAMES, Policy("max_prob", 0.9), trace, texts[:3])
    other = Trace(trace.logits, 1 - trace.labels, LAYERS, trace.about)
    with pytest.raises(InputError, match="their labels differ"):
        check_same_texts(trace.labels, trace.about, other)


def test_folders_of_others_are_left_alone(page, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match="is no report of exitpoll"):
        write_report(material(), tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
    check_place(page.parent)  # a report may be written anew


def test_it_says_what_is_a_sample_and_what_was_calibrated_on_the_same_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "MOST_TEXTS", 50)
    found = material()
    assert "that its calibration had not seen" not in write_report(found, tmp_path / "a").read_text()
    about = {"data": "toy", "split": "test"}
    same = replace(found, policy=replace(found.policy, certificate=certified(**about)))
    text = write_report(same, tmp_path / "b").read_text()
    assert "50 of the 120 texts are shown" in text
    assert "calibrated on this very split" in text
    other = replace(found, policy=replace(found.policy, certificate=certified(**{**about, "split": "calibration"})))
    assert "that its calibration had not seen" in write_report(other, tmp_path / "c").read_text()


def test_without_jinja(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"writing a report needs more packages: .*exitpoll\[plots\]"):
        write_report(material(), tmp_path)


def browse(page, tmp_path, *flags, fragment=""):
    """Open the page as a browser would; what its console said is in the second part."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [BROWSER, *options, profile, "--virtual-time-budget=3000", *flags, f"file://{page}{fragment}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return found.stdout, [line for line in found.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
class TestInABrowser:
    def test_the_table_is_drawn_without_errors(self, page, tmp_path):
        shown, said = browse(page, tmp_path, "--dump-dom")
        assert said == []
        assert "120 of 120 texts" in shown
        assert shown.count('class="strip" role="img"') == 50
        assert "&lt;/script&gt;&lt;script&gt;alert(1)" in shown

    def test_filters_keep_what_they_say(self, page, tmp_path):
        wrong = [row for row in data_of(page)["rows"] if row["exit"] < 2 and row["answer"] != row["gold"]]
        shown, said = browse(page, tmp_path, "--dump-dom", fragment="#show=early_wrong")
        assert said == []
        assert f"{len(wrong)} of 120 texts" in shown
        assert "✓" not in shown[shown.index("<tbody>", shown.index('id="texts"')) : shown.index('id="more"')]

    @pytest.mark.parametrize("flags", [["--window-size=390,844"], ["--force-dark-mode", "--window-size=1200,900"]])
    def test_on_a_phone_and_in_the_dark(self, page, tmp_path, flags):
        picture = tmp_path / "shot.png"
        _, said = browse(page, tmp_path, f"--screenshot={picture}", *flags)
        assert said == []
        assert picture.stat().st_size > 10_000
