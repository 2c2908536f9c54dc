"""A report is one self-contained page that holds every text and shows no error in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from exitpoll import InputError, Policy, Trace
from exitpoll.report import texts
from exitpoll.report.html import build_report, check_report_folder, check_same_texts, write_report
from exitpoll.report.texts import text_table
from tests.report.samples import LAYERS, NAMES, benchmark, example, report
from tests.samples import certified

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(report(timed=benchmark()), tmp_path_factory.mktemp("report"))


def data_of(page):
    [table] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), flags=re.S)
    return json.loads(table)


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


def test_its_data_are_the_table_of_texts(page):
    given = report()
    assert data_of(page) == text_table(given.texts, given.trace, given.policy, NAMES)


def test_its_numbers_are_those_of_the_evaluation(page):
    ours = report().evaluation.rows[0]
    text = page.read_text()
    assert f"<b>{100 * ours.score.value:.1f} %</b>" in text
    assert f"<b>{ours.speedup:.2f} ×</b>" in text
    assert "never calibrated, so nothing is guaranteed" in text
    assert "<p>a note</p>" in text


def test_wall_clock_times_by_way_and_batch_size(page):
    text = " ".join(page.read_text().split())
    assert "<b>1.0 ×</b> wall-clock speed-up over plain transformers" in text
    rows = re.findall(r"<tr><td>torch</td><td>([^<]*)</td> ((?:<td class=.number.>1.00 ×</td>)+)</tr>", text)
    assert [way for way, _ in rows] == ["plain transformers", "engine, all layers", "engine", "static"]
    assert all(cells.count("×") == 2 for _, cells in rows)


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_other_problem_types(problem_type, tmp_path):
    page = write_report(report(problem_type), tmp_path)
    table = data_of(page)
    assert table["symbols"] == []
    names = set(table["names"])
    assert names & ({"(none)", "bad", "good", "bad, good"} if problem_type != "regression" else {"0.00", "1.00"})
    assert table["regression"] == (problem_type == "regression")
    assert (tmp_path / "agreement.png").exists() == (problem_type != "regression")
    assert "Wall-clock time</h2>" not in page.read_text()


def test_what_cannot_be_reported():
    trace, texts = example()
    with pytest.raises(InputError, match="have no labels"):
        build_report("x", NAMES, Policy("max_prob", 0.9), Trace(trace.logits, None, LAYERS, trace.about), texts)
    with pytest.raises(InputError, match="the trace is of 120 texts, and 3 were read"):
        build_report("x", NAMES, Policy("max_prob", 0.9), trace, texts[:3])
    other = Trace(trace.logits, 1 - trace.labels, LAYERS, trace.about)
    with pytest.raises(InputError, match="their labels differ"):
        check_same_texts(trace.labels, trace.about, other)


def test_other_files_are_never_replaced(page, tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(InputError, match="is not an exitpoll report"):
        write_report(report(), tmp_path)
    assert (tmp_path / "report.html").read_text() == "mine"
    with pytest.raises(InputError, match="is not a folder"):
        check_report_folder(tmp_path / "report.html")
    check_report_folder(page.parent)  # a report may be replaced


def test_samples_and_calibration_texts_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "MOST_TEXTS", 50)
    given = report()
    assert "measured on 120 texts." in write_report(given, tmp_path / "a").read_text()
    about = {"data": "toy", "split": "test"}
    same = replace(given, policy=replace(given.policy, certificate=certified(**about)))
    text = write_report(same, tmp_path / "b").read_text()
    assert "50 of the 120 texts are shown" in text
    assert "calibrated on this very split" in text
    assert "measured on 120 texts." in text
    other = replace(given, policy=replace(given.policy, certificate=certified(**{**about, "split": "calibration"})))
    text = write_report(other, tmp_path / "c").read_text()
    assert "measured on 120 held-out texts." in text
    assert "Calibrated on toy calibration:" in text


def test_without_jinja(monkeypatch, tmp_path):
    given = report()
    monkeypatch.setattr("exitpoll.errors.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"writing a report needs more packages: .*exitpoll\[plots\]"):
        write_report(given, tmp_path)


def browse(page, tmp_path, *flags, fragment=""):
    """Open the page in a browser, and return its content and the lines of its console."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [BROWSER, *options, profile, "--virtual-time-budget=3000", *flags, f"file://{page}{fragment}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
class TestInABrowser:
    def test_the_table_is_drawn_without_errors(self, page, tmp_path):
        shown, console = browse(page, tmp_path, "--dump-dom")
        assert console == []
        assert "120 of 120 texts" in shown
        assert shown.count('class="strip" role="img"') == 50
        assert "&lt;/script&gt;&lt;script&gt;alert(1)" in shown

    def test_filters_keep_what_they_say(self, page, tmp_path):
        wrong = [row for row in data_of(page)["rows"] if row["exit"] < 2 and row["answer"] != row["gold"]]
        shown, console = browse(page, tmp_path, "--dump-dom", fragment="#show=early_wrong")
        assert console == []
        assert f"{len(wrong)} of 120 texts" in shown
        assert "✓" not in shown[shown.index("<tbody>", shown.index('id="texts"')) : shown.index('id="more"')]

    @pytest.mark.parametrize("flags", [["--window-size=390,844"], ["--force-dark-mode", "--window-size=1200,900"]])
    def test_on_a_phone_and_in_the_dark(self, page, tmp_path, flags):
        picture = tmp_path / "shot.png"
        _, console = browse(page, tmp_path, f"--screenshot={picture}", *flags)
        assert console == []
        assert picture.stat().st_size > 10_000
