"""exitpoll report: the page is written from texts or from a trace of them, and files of other models are refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from exitpoll import Policy
from tests.report.samples import benchmark
from tests.report.test_html import data_of
from tests.tiny import write_toy_folder


@pytest.fixture
def arguments(model, tmp_path):
    """A model with a policy, and data."""
    write_toy_folder(tmp_path / "toy", train=60, others=40)
    Policy("max_prob", 0.5).save(model / "policy.json")
    return [model, "--data", tmp_path / "toy"]


def test_by_texts_or_by_their_trace(run, refused, arguments, model, tmp_path):
    code, printed, _ = run("report", *arguments)
    assert code == 0
    assert "report.html" in printed
    assert len(data_of(model / "report" / "report.html")["texts"]["text"]) == 40
    trace = ("--trace", tmp_path / "t.safetensors")
    run("record", *arguments, "--split", "test", "--out", trace[1])
    code, _, _ = run("report", *arguments, *trace, "--out", tmp_path / "again")
    assert code == 0
    assert data_of(tmp_path / "again" / "report.html") == data_of(model / "report" / "report.html")
    message = "the trace is of split test, and split calibration was read"
    refused(message, "report", *arguments, *trace, "--split", "calibration")


def test_texts_without_labels(run, arguments, model, tmp_path):
    (tmp_path / "mails.csv").write_text("text\n" + "\n".join(f"a text of number {number}" for number in range(30)))
    code, _, _ = run("report", model, "--data", tmp_path / "mails.csv", "--split", "all")
    assert code == 0
    assert data_of(model / "report" / "report.html")["texts"]["gold"] is None


def test_the_header_names_encoder_and_splits(run, arguments, model):
    run("report", *arguments)
    header = (model / "report" / "report.html").read_text().split("</header>")[0]
    sizes = json.loads((model / "training.json").read_text())["texts"]
    assert f"train {sizes['train']}, calibration {sizes['calibration']}, test {sizes['test']}" in header
    assert "<dt>versions</dt><dd>exitpoll " in header


def test_benchmarks_that_are_refused(refused, arguments, tmp_path):
    bench = ("--bench", tmp_path / "bench.json")
    refused("there is no", "report", *arguments, *bench)
    changed = replace(benchmark(), about={"fingerprints": {"torch": "another"}})
    bench[1].write_text(json.dumps(changed.to_dict()))
    refused("was made from another model", "report", *arguments, *bench)
    bench[1].write_text("{}")
    refused("is not what exitpoll bench writes", "report", *arguments, *bench)
