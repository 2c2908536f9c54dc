"""The command line as a user meets it: what it shows, and one line with exit code 2 for what it refuses."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from exitpoll import __version__
from exitpoll.files import read_json, write_json
from tests.tiny import save_tiny, tiny_encoder, toy_rows, write_toy_folder, write_tsv


@pytest.fixture
def data(tmp_path):
    return write_toy_folder(tmp_path / "data")


FAST = ("--epochs", "1", "--logs-per-epoch", "2")


def test_version(run):
    assert run("--version")[1].strip() == __version__


def test_help_shows_an_example_and_every_setting(run):
    code, out, _ = run("train", "--help")
    assert code == 0
    assert "exitpoll train --encoder bert-base-uncased --data trec --out trec-bert" in out
    assert "--diversity-weight" in out
    assert "λ of the ensemble objective" in out


def test_train_shows_progress_and_a_table(run, data, encoder_folder, tmp_path):
    code, out, err = run("train", "--encoder", encoder_folder, "--data", data, "--out", tmp_path / "m", *FAST)
    assert code == 0, err
    assert "accuracy by exit" in out
    assert out.count("│") >= 3 * 5
    assert f"wrote {tmp_path / 'm'}" in out
    assert "loss" in err
    assert "exits" in err
    assert (tmp_path / "m" / "model.safetensors").exists()


def test_whole_numbers_are_not_rounded(run, data, encoder_folder, tmp_path):
    options = ("--encoder", encoder_folder, "--data", data, "--out", tmp_path / "m")
    for name in ("--epochs", "--early-stop", "--exits"):
        code, _, err = run("train", *options, name, "1.5")
        assert code != 0
        assert f"Invalid value for {name}: 1.5 is no whole number" in " ".join(err.split())


def test_train_on_pairs_with_chosen_exits(run, encoder_folder, tmp_path):
    write_tsv(tmp_path / "d" / "train.tsv", toy_rows(60, pairs=True), ("text_a", "text_b", "label"))
    options = ("--exits", "1", "3", "--method", "pabee", "--pooling", "first", "--limit", "32", *FAST)
    code, out, err = run(
        "train", "--encoder", encoder_folder, "--data", tmp_path / "d", "--out", tmp_path / "m", *options
    )
    assert code == 0, err
    assert "was cut from train with seed 0" in out
    assert "32 of" in out
    config, training = (read_json(tmp_path / "m" / f"{name}.json") for name in ("config", "training"))
    assert (config["exits"], config["pooling"]) == ([1, 3], "first")
    assert training["settings"]["method"] == "pabee"
    assert training["pairs"]


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
            "--max-drop",
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
    options = (*columns, "--on-error", "skip", "--threads", "1", "--output", tmp_path / "out.csv")
    code, out, err = run("predict", model, "--input", tmp_path / "in.csv", *options)
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
        ("predict", model, "--input", tmp_path / "d" / "train.tsv", "--output", tmp_path / "out.csv"),
    ):
        code, _, err = run(*words)
        assert code == 0, (words, err)
    with (tmp_path / "out.csv").open(newline="") as file:
        said = {row["predicted"] for row in csv.DictReader(file)}
    if answer is None:
        assert all(np.isfinite(float(value)) for value in said)
    else:
        assert said <= set(answer)


def test_train_below_a_classifier_leaves_it_alone(run, data, classifier_folder, tmp_path):
    code, out, err = run("train", "--classifier", classifier_folder, "--data", data, "--out", tmp_path / "m", *FAST)
    assert code == 0, err
    assert "its classes are taken to be, in order: bad, good, so-so" in out
    before = load_file(classifier_folder / "model.safetensors")
    after = load_file(tmp_path / "m" / "model.safetensors")
    assert torch.equal(before["bert.pooler.dense.weight"], after["encoder.pooler.dense.weight"])
    assert torch.equal(before["classifier.weight"], after["native.classifier.weight"])
    assert read_json(tmp_path / "m" / "config.json")["id2label"] == {"0": "bad", "1": "good", "2": "so-so"}


def test_long_texts_are_mentioned(run, encoder_folder, tmp_path):
    rows = [*toy_rows(40), ("good " * 80, "good")]
    write_tsv(tmp_path / "a.tsv", rows)
    code, out, _ = run(
        "train", "--encoder", encoder_folder, "--data", tmp_path / "a.tsv", "--out", tmp_path / "m", *FAST
    )
    assert code == 0
    assert "1 of 41 texts were longer than 40 tokens and truncated" in out


class TestRefusals:
    @pytest.fixture
    def refused(self, run, tmp_path):
        def check(message, *arguments, out="m"):
            before = sorted(path.name for path in tmp_path.iterdir())
            code, printed, err = run("train", "--out", tmp_path / out, *arguments)
            assert code == 2
            assert printed == ""
            assert message in err
            assert "unexpected" not in err  # as a crash is named
            assert err.startswith("exitpoll: ")
            assert err.count("\n") == 1
            assert sorted(path.name for path in tmp_path.iterdir()) == before

        return check

    def test_nothing_to_start_from(self, refused, data):
        refused("either --encoder or --classifier", "--data", data)

    def test_two_things_to_start_from(self, refused, data, encoder_folder):
        refused("either --encoder or", "--data", data, "--encoder", encoder_folder, "--classifier", encoder_folder)

    def test_missing_data(self, refused, tmp_path, encoder_folder):
        refused("does not exist", "--data", tmp_path / "none.csv", "--encoder", encoder_folder)

    def test_missing_encoder(self, refused, data):
        refused("is neither a folder nor on the hub", "--data", data, "--encoder", "no/such-encoder")

    def test_output_that_exists(self, refused, data, encoder_folder, tmp_path):
        (tmp_path / "m").mkdir()
        write_json(tmp_path / "m" / "config.json", {"model_type": "exitpoll"})
        refused("exists already; choose another folder or say --overwrite", "--data", data, "--encoder", encoder_folder)

    def test_diversity_weight(self, refused, data, encoder_folder):
        refused("below 1", "--data", data, "--encoder", encoder_folder, "--diversity-weight", "1.5")

    def test_unknown_method(self, refused, data, encoder_folder):
        refused('Invalid value "bert"', "--data", data, "--encoder", encoder_folder, "--method", "bert")

    def test_unknown_option(self, refused, data, encoder_folder):
        refused("--nonsense", "--data", data, "--encoder", encoder_folder, "--nonsense", "1")

    def test_missing_option(self, refused, encoder_folder):
        refused("--data", "--encoder", encoder_folder)

    def test_other_labels_than_the_classifiers(self, refused, tmp_path, classifier_folder):
        write_tsv(tmp_path / "a.tsv", [("good", "1"), ("bad", "0")] * 10)
        refused("knows 3 labels, the data 2", "--data", tmp_path / "a.tsv", "--classifier", classifier_folder)

    def test_labels_a_named_classifier_does_not_know(self, refused, tmp_path):
        save_tiny("bert", tmp_path / "c", classifier=True)
        config = read_json(tmp_path / "c" / "config.json")
        names = {"0": "ham", "1": "spam", "2": "eggs"}
        write_json(tmp_path / "c" / "config.json", config | {"id2label": names, "label2id": {}})
        write_tsv(tmp_path / "a.tsv", [("good", "fine"), ("bad", "foul")] * 10)
        refused(
            "not among the known labels: ham, spam, eggs", "--data", tmp_path / "a.tsv", "--classifier", tmp_path / "c"
        )

    def test_an_encoder_without_a_tokenizer(self, refused, data, tmp_path):
        tiny_encoder("bert").save_pretrained(tmp_path / "bare")
        refused("has no tokenizer", "--data", data, "--encoder", tmp_path / "bare")

    def test_heads_alone_on_an_encoder(self, refused, data, encoder_folder):
        refused("use --classifier", "--data", data, "--encoder", encoder_folder, "--schedule", "heads")

    def test_a_classifier_without_a_head(self, refused, data, encoder_folder):
        refused("lacks weights, classifier.bias among them", "--data", data, "--classifier", encoder_folder)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"num_hidden_layers": 5}, "lacks weights"),
            ({"hidden_size": 16}, "cannot be loaded"),
            ({"hidden_act": "zork"}, "cannot be loaded"),
            ({"model_type": ["bert"]}, "has no readable config.json"),
            ({"num_hidden_layers": "x"}, "has no readable config.json"),
        ],
    )
    def test_a_config_that_does_not_fit(self, refused, data, tmp_path, change, message):
        folder = save_tiny("bert", tmp_path / "e")
        write_json(folder / "config.json", read_json(folder / "config.json") | change)
        refused(message, "--data", data, "--encoder", folder)

    def test_a_tokenizer_that_is_broken(self, refused, data, tmp_path):
        folder = save_tiny("bert", tmp_path / "e")
        (folder / "tokenizer.json").write_text("{}")
        refused("has no tokenizer that can be read", "--data", data, "--encoder", folder)

    def test_a_tokenizer_that_cannot_pad(self, refused, data, tmp_path):
        folder = save_tiny("bert", tmp_path / "e")
        config = read_json(folder / "tokenizer_config.json")
        write_json(folder / "tokenizer_config.json", {k: v for k, v in config.items() if k != "pad_token"})
        refused("has no padding token", "--data", data, "--encoder", folder)

    @pytest.mark.parametrize("length", ["0", "2", "3"])
    def test_a_length_without_room_for_a_word(self, refused, encoder_folder, tmp_path, length):
        write_tsv(tmp_path / "d" / "train.tsv", toy_rows(60, pairs=True), ("text_a", "text_b", "label"))
        options = ("--data", tmp_path / "d", "--encoder", encoder_folder, "--max-length", length)
        refused(f"max_length {length}", *options)

    def test_weights_that_are_cut_short(self, refused, data, tmp_path):
        folder = save_tiny("bert", tmp_path / "e")
        weights = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        refused("cannot be loaded", "--data", data, "--encoder", folder)


def test_what_nobody_expected_is_one_line_too(run, data, encoder_folder, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("of all\nthings")

    monkeypatch.setattr("exitpoll.training.train", fail)
    arguments = ("train", "--encoder", encoder_folder, "--data", data, "--out", tmp_path / "m")
    code, _, err = run(*arguments)
    assert code == 2
    assert err == "exitpoll: unexpected ZeroDivisionError: of all things (EXITPOLL_TRACEBACK=1 shows where)\n"
    monkeypatch.setenv("EXITPOLL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(*arguments)


def test_an_interrupt_says_how_to_go_on(run, data, encoder_folder, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("exitpoll.training.train", interrupt)
    code, _, err = run("train", "--encoder", encoder_folder, "--data", data, "--out", tmp_path / "m")
    assert code == 130
    assert "--resume" in err


def test_odd_folder_names_are_printed_as_they_are(run, data, encoder_folder, tmp_path):
    out = tmp_path / "[red]m[ red]"
    code, printed, err = run("train", "--encoder", encoder_folder, "--data", data, "--out", out, *FAST)
    assert code == 0, err
    assert f"wrote {out}" in printed
