"""The steps of the quickstart are commands that a user could type, and its input is written once."""

from __future__ import annotations

import json

import pytest

from exitpoll import InputError
from exitpoll.cli import quickstart
from exitpoll.cli.app import app
from exitpoll.cli.pace import Pace
from exitpoll.cli.quickstart import Choices, Started, describe_answers, describe_speed, prepare, steps
from exitpoll.files import write_json
from tests.report.samples import benchmark
from tests.tiny import toy_rows, write_tsv

EMBEDDED = Choices("embedded", "embedded", fast=True)


@pytest.fixture(autouse=True)
def usual_machine(monkeypatch):
    monkeypatch.setattr(quickstart, "measure", lambda encoder, texts: Pace(0.2, 2))


def test_its_input_is_written_once(tmp_path):
    prepare(tmp_path / "out", EMBEDDED)
    path = tmp_path / "out" / quickstart.INPUT
    before = path.stat().st_mtime_ns
    prepare(tmp_path / "out", EMBEDDED)
    assert path.stat().st_mtime_ns == before  # an interrupted predict resumes only with the very same input


def test_other_choices_are_refused(tmp_path):
    prepare(tmp_path / "out", EMBEDDED)
    with pytest.raises(InputError, match="was started with encoder embedded, data embedded, fast True"):
        prepare(tmp_path / "out", Choices("embedded", "embedded", fast=False))


def test_pairs_of_other_data_are_its_input(tmp_path):
    write_tsv(tmp_path / "d" / "train.tsv", toy_rows(60, pairs=True), ("text_a", "text_b", "label"))
    prepare(tmp_path / "out", Choices("embedded", str(tmp_path / "d"), fast=True))
    rows = [json.loads(line) for line in (tmp_path / "out" / quickstart.INPUT).read_text().splitlines()]
    assert len(rows) == len(quickstart.SENTENCES)
    assert all(set(row) == {"text_a", "text_b"} for row in rows)


def test_answers_show_their_depth(tmp_path):
    rows = [
        {"text": "good", "predicted": "positive", "probability": 0.987, "depth": 2},
        {"text_a": "so", "text_b": "so", "predicted": 1.5, "probability": None, "depth": 3},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert describe_answers(tmp_path / "a.jsonl", 3) == [
        "■■□ after  2 of 3: positive  99 %  good",
        "■■■ after  3 of 3: 1.5        so",
    ]


def test_speeds_are_stated_as_two_factors(tmp_path):
    write_json(tmp_path / "bench.json", benchmark().to_dict())
    head, *lines = describe_speed(tmp_path / "bench.json")
    assert head == "wall-clock time, with the range over the rounds:"
    assert lines
    for line in lines:
        assert "by early exit, on top of" in line
        assert line.count(" to ") == 3  # every factor has its range
        assert "batch size" in line


def test_what_is_missing_is_reported_first(monkeypatch):
    monkeypatch.setattr("exitpoll.errors.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"the quickstart needs more packages: .*exitpoll\[onnx\]"):
        quickstart.check_requirements("another")


@pytest.mark.parametrize("fast", [True, False])
def test_every_step_is_a_command(tmp_path, fast):
    for step in steps(tmp_path, Started(Choices("embedded", "embedded", fast), limit=1000 if fast else None)):
        assert app.parse_args(step.words, exit_on_error=False)
        if step.fallback:
            assert app.parse_args([step.verb, *step.fallback], exit_on_error=False)
