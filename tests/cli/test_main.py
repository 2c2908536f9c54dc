"""The command line as a whole: verbs one after another, and one line with exit code 2 for whatever goes wrong."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from exitpoll import __version__
from exitpoll.files import read_json
from tests.tiny import toy_rows, write_tsv

FAST = ("--epochs", "1", "--logs-per-epoch", "2")


def test_version(run):
    assert run("--version")[1].strip() == __version__


def test_fractions_are_not_rounded_to_integers(run, data, encoder_folder, tmp_path):
    options = ("--encoder", encoder_folder, "--data", data, "--out", tmp_path / "m")
    for name in ("--epochs", "--early-stop", "--exits"):
        code, _, err = run("train", *options, name, "1.5")
        assert code != 0
        assert f"Invalid value for {name}: 1.5 is not an integer" in " ".join(err.split())


def test_columns_of_other_names_from_training_to_predicting(run, encoder_folder, tmp_path):
    write_tsv(tmp_path / "d" / "train.tsv", toy_rows(240, pairs=True), ("review", "reply", "stars"))
    columns = ("--text-column", "review", "--pair-column", "reply")
    both, model = (*columns, "--label-column", "stars"), tmp_path / "m"
    data = ("--data", tmp_path / "d", *both)
    shape = ("--head", "linear", "--shared-head", "--select", "last", "--precision", "fp32", "--objective", "relevancy")
    steps = [
        ("train", "--encoder", encoder_folder, *data, "--task", "rte", "--out", model, *shape, *FAST),
        ("record", model, *data, "--out", tmp_path / "t"),
        (
            "calibrate",
            model,
            "--trace",
            tmp_path / "t",
            "--max-disagreement",
            "0.9",
            "--confidence",
            "0.8",
            "--strategy",
            "entropy",
        ),
        ("evaluate", model, *data),
    ]
    for words in steps:
        code, _, err = run(*words)
        assert code == 0, (words, err)
    config, training = (read_json(model / f"{name}.json") for name in ("config", "training"))
    assert (config["head"], config["shared_head"]) == ("linear", True)
    chosen = {name: training["settings"][name] for name in ("select", "precision", "objective")}
    assert chosen == {"select": "last", "precision": "fp32", "objective": "relevancy"}
    assert read_json(model / "policy.json")["certificate"]["goal"]["confidence"] == 0.8
    (tmp_path / "in.csv").write_text("review,reply\ngood film,yes\n,no\n")
    options = (*columns, "--on-error", "skip", "--threads", "1", "--out", tmp_path / "out.csv")
    code, out, err = run("predict", model, "--data", tmp_path / "in.csv", *options)
    assert code == 0, err
    assert "1 rows were skipped" in out
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("kind", "labels", "answer"),
    [("multi_label_classification", "x|y", ("x|y", "x", "y", "")), ("regression", "1.5", None)],
)
def test_other_problems_from_training_to_predicting(run, encoder_folder, tmp_path, kind, labels, answer):
    rows = [(text, labels if number % 2 else labels[-1]) for number, (text, _) in enumerate(toy_rows(60))]
    write_tsv(tmp_path / "d" / "train.tsv", rows)
    model, data = tmp_path / "m", ("--data", tmp_path / "d")
    for words in (
        (
            "train",
            "--encoder",
            encoder_folder,
            *data,
            "--problem-type",
            kind,
            "--objective",
            "relevancy",
            "--out",
            model,
            *FAST,
        ),
        ("record", model, *data, "--out", tmp_path / "t"),
        ("calibrate", model, "--trace", tmp_path / "t", "--speedup", "1.1"),
        ("evaluate", model, *data),
        ("predict", model, "--data", tmp_path / "d" / "train.tsv", "--out", tmp_path / "out.csv"),
    ):
        code, _, err = run(*words)
        assert code == 0, (words, err)
    with (tmp_path / "out.csv").open(newline="") as file:
        said = {row["predicted"] for row in csv.DictReader(file)}
    if answer is None:
        assert all(np.isfinite(float(value)) for value in said)
    else:
        assert said <= set(answer)


def test_an_unexpected_error_is_one_line(run, data, encoder_folder, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("of all\nthings")

    monkeypatch.setattr("exitpoll.training.train.train", fail)
    arguments = ("train", "--encoder", encoder_folder, "--data", data, "--out", tmp_path / "m")
    code, _, err = run(*arguments)
    assert code == 2
    assert err == "exitpoll: unexpected ZeroDivisionError: of all things (EXITPOLL_TRACEBACK=1 shows where)\n"
    monkeypatch.setenv("EXITPOLL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(*arguments)


def test_an_interrupt_names_the_option_to_continue(run, data, encoder_folder, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("exitpoll.training.train.train", interrupt)
    code, _, err = run("train", "--encoder", encoder_folder, "--data", data, "--out", tmp_path / "m")
    assert code == 130
    assert err == "exitpoll: interrupted; rerun with --resume to continue\n"


def test_settings_of_a_training_are_taken_where_pydantic_is_imported(run, data, encoder_folder, tmp_path):
    pytest.importorskip("pydantic")  # with which cyclopts validates dataclasses
    code, _, err = run("train", "--encoder", encoder_folder, "--data", data, "--out", tmp_path / "m", "--epochs", "0")
    assert (code, err.strip()) == (2, "exitpoll: epochs 0 must be at least 1")
