"""A report is one self-contained page whose numbers are those of the trace, and whose texts are harmless."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from exitpoll import InputError, Policy, Trace, calibrate
from exitpoll.benchmark.timing import Way
from exitpoll.report import texts
from exitpoll.report.breakdowns import by_class
from exitpoll.report.clock import timing_rows
from exitpoll.report.html import build_report, check_report_folder, check_same_texts, write_report
from exitpoll.report.texts import text_table
from tests.report.samples import LAYERS, NAMES, benchmark, example, report
from tests.samples import certified, random_trace

POLICY = Policy("max_prob", 0.9)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(report(timed=benchmark()), tmp_path_factory.mktemp("report"))


def data_of(page):
    [table] = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), flags=re.S)
    return json.loads(table)


def words_of(page):
    """The text of the page as it is read, in one line."""
    body = page.read_text().split("<main>")[1].split("</main>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_page_needs_nothing_else(page):
    text = page.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]+"', text)
    assert "url(http" not in text
    assert "@import" not in text
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe" not in policy


def test_its_policy_names_the_script_and_the_style(page):
    text = page.read_text()
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    for tag in ("style", "script"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in html.unescape(policy)


def test_figures_stand_beside_it(page):
    for name in ("curves", "depths", "exits", "agreement", "parts"):
        assert (page.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (page.parent / f"{name}.svg").read_text()


def test_its_data_are_those_of_the_report(page):
    given = report()
    data = data_of(page)
    assert data["texts"] == text_table(given.texts, given.trace, given.policy, NAMES)
    assert data["slider"] == given.slider
    assert data["depths"] == list(given.evaluation.depths.values())


def test_its_numbers_are_those_of_the_evaluation(page):
    ours, words = report().evaluation.rows[0], words_of(page)
    assert f"Cost of early exit {100 * abs(ours.drop.value):.1f} points" in words
    assert f"Speed-up in layers {ours.speedup:.2f} × 4 layers" in words
    assert "never calibrated, so nothing is guaranteed" in words
    assert "a note" in words
    assert "Best static depth: layer 4" in words


def test_the_header_states_where_the_numbers_come_from(tmp_path):
    training = {"encoder": "bert-tiny", "data": "toy", "texts": {"train": 1000, "test": 120}}
    page = write_report(report(training=training), tmp_path)
    header = page.read_text().split("<header>")[1].split("</header>")[0]
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", header))
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}", facts.pop("written"))
    assert facts == {
        "encoder": "bert-tiny",
        "trained on": "toy",
        "splits": "train 1,000, test 120",
        "measured on": "toy test",
        "texts": "120",
    }


def test_errors_are_broken_down(page):
    words, given = words_of(page), report()
    assert "Confusion matrix" in words
    for part in by_class(given.decided, NAMES):
        assert f"{part.name} {part.texts} {100 * part.score:.1f} {100 * part.full_score:.1f}" in words
    assert "Loss by length" in words
    lost = given.decided.policy.answer != given.decided.gold
    first = int((lost & (given.decided.gold == 0)).sum())
    assert f'<a href="#label=0&amp;answer=1">{first}</a>' in page.read_text()


def test_a_reader_is_warned_of_training_texts_and_of_other_texts(tmp_path):
    trace, given = example()
    trained = replace(trace, about={**trace.about, "overlap": {"checked": 120, "shared": 60}})
    page = write_report(build_report("x", NAMES, POLICY, trained, given), tmp_path / "a")
    assert "the model was trained on 50.0 % of these texts" in words_of(page)
    calibrated = calibrate(replace(trace, lengths=np.full(120, 5)), "max_prob", speedup=1.1)
    longer = replace(trace, lengths=np.full(120, 500))
    page = write_report(build_report("x", NAMES, calibrated, longer, given), tmp_path / "b")
    assert "differ from the calibration texts" in words_of(page)


def test_lengths_are_tokens_where_the_trace_has_them(tmp_path):
    trace, given = example()
    trace = replace(trace, lengths=np.arange(120))
    words = words_of(write_report(build_report("x", NAMES, POLICY, trace, given), tmp_path))
    assert "tokens texts policy full loss layers 0 to 23 24 " in words


def test_wall_clock_times_by_way_and_batch_size(page):
    words = words_of(page)
    assert (
        "Wall-clock speed-up 1.25 × by early exit (1.25 to 1.25) 2.00 × by running all layers in onnx (2.00 to 2.00)"
        in words
    )
    assert "onnx 32 2.00 × (2.00 to 2.00) 1.25 × (1.25 to 1.25)" in words
    assert "onnx full graph 2.00 × 2.00 × onnx engine, all layers 1.60 × 1.60 × onnx engine 2.50 × 2.50 ×" in words


def test_where_the_time_goes_agrees_with_the_table(page):
    table = {(row.runtime, size): speed for row in timing_rows(benchmark()) if row.way == Way.ENGINE
             for size, speed in zip((1, 32), row.speeds, strict=True)}  # fmt: skip
    parts = data_of(page)["parts"]
    assert {(part["runtime"], part["batch_size"]) for part in parts} == set(table)
    for part in parts:
        share = sum(part["milliseconds"].values()) / part["plain"]
        assert 1 / share == pytest.approx(table[part["runtime"], part["batch_size"]], rel=1e-3)


@pytest.mark.parametrize("problem_type", ["multi_label_classification", "regression"])
def test_other_problem_types(problem_type, tmp_path):
    page = write_report(report(problem_type), tmp_path)
    data, regression = data_of(page), problem_type == "regression"
    assert set(data["texts"]["names"]) & ({"0.00", "1.00"} if regression else {"(none)", "bad", "good", "bad, good"})
    assert data["texts"]["regression"] == regression
    assert (tmp_path / "agreement.png").exists() == bool(data["agreement"]) == bool(data["reliability"]) != regression
    assert "Wall-clock time" not in words_of(page)
    assert "Confusion matrix" not in words_of(page)
    assert ("Loss by class" in words_of(page)) != regression


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_texts_without_labels_are_compared_with_the_full_model(problem_type, tmp_path):
    given = report(problem_type, labelled=False)
    page = write_report(given, tmp_path)
    words, data = words_of(page), data_of(page)
    assert "without labels: answers are compared with those of the full model" in page.read_text()
    regression = problem_type == "regression"
    assert ("less agreement than the full model" if regression else "of answers differ from the full model’s") in words
    assert "Best static depth" not in words
    assert data["texts"]["gold"] is None
    assert data["metric"] == "agreement"
    assert data["exits"]["agreement"][-1] == 1.0
    assert "AUROC" in words or problem_type == "regression"


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification"])
def test_a_policy_without_errors(problem_type, tmp_path):
    given = report(problem_type)
    sentence = "The policy answers every text right."
    assert sentence not in words_of(write_report(given, tmp_path / "a"))
    right = replace(given.trace, labels=given.decided.policy.answer)
    perfect = build_report("x", NAMES, given.policy, right, given.texts)
    assert (sentence in words_of(write_report(perfect, tmp_path / "b"))) == (
        problem_type != "single_label_classification"
    )


def test_many_classes_have_no_matrix(tmp_path):
    trace = random_trace(0, classes=20)
    names = [f"class {number}" for number in range(20)]
    words = words_of(write_report(build_report("x", names, Policy("max_prob", 0.5), trace, ["x"] * 60), tmp_path))
    assert "Confusion matrix" not in words
    assert "Most frequent confusions" in words


def test_what_cannot_be_reported():
    trace, texts = example()
    with pytest.raises(InputError, match="the trace is of 120 texts, and 3 were read"):
        build_report("x", NAMES, POLICY, trace, texts[:3])
    with pytest.raises(InputError, match="there are no texts"):
        build_report("x", NAMES, POLICY, trace.select(slice(0)), [])
    other = Trace(trace.logits, 1 - trace.labels, LAYERS, trace.about)
    with pytest.raises(InputError, match="their labels differ"):
        check_same_texts(trace.labels, trace.about, other)


def test_names_and_texts_are_escaped(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    trace, _ = example()
    about = {**trace.about, "data": evil, "torch": evil}
    given = build_report(
        evil,
        [evil, "good"],
        POLICY,
        replace(trace, about=about),
        [evil] * 120,
        notes=[evil],
        training={"encoder": evil, "data": evil, "texts": {evil: 1}},
        benchmark=replace(benchmark(), about={"data": evil, "split": evil}),
    )
    text = write_report(given, tmp_path).read_text()
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text


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
    assert "50 of the 120 texts are listed" in text
    assert "calibrated on this very split" in text
    assert "measured on 120 texts." in text
    other = replace(given, policy=replace(given.policy, certificate=certified(**{**about, "split": "calibration"})))
    text = write_report(other, tmp_path / "c").read_text()
    assert "measured on 120 held-out texts." in text
    assert "Calibration: toy calibration</h3>" in text


def test_without_jinja(monkeypatch, tmp_path):
    given = report()
    monkeypatch.setattr("exitpoll.errors.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"writing a report needs more packages: .*exitpoll\[plots\]"):
        write_report(given, tmp_path)
