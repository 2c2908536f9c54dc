"""exitpoll train: what it prints and writes, and one line with exit code 2 for what it refuses."""

from __future__ import annotations

import pytest

from exitpoll.files import read_json, write_json
from tests.tiny import save_tiny, tiny_encoder, toy_rows, write_tsv

FAST = ("--epochs", "1", "--logs-per-epoch", "2")


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
    assert (config["exit_layers"], config["pooling"]) == ([1, 3], "first")
    assert training["settings"]["method"] == "pabee"
    assert training["pairs"]


def test_the_classes_of_a_classifier_take_their_names_from_the_data(run, data, classifier_folder, tmp_path):
    code, out, err = run("train", "--classifier", classifier_folder, "--data", data, "--out", tmp_path / "m", *FAST)
    assert code == 0, err
    assert "they are taken to be, in order: bad, good, so-so" in out
    assert read_json(tmp_path / "m" / "config.json")["id2label"] == {"0": "bad", "1": "good", "2": "so-so"}


def test_the_classes_of_a_classifier_can_be_named(run, data, classifier_folder, tmp_path):
    names = ("--labels", "so-so", "bad", "good")
    code, _, err = run(
        "train", "--classifier", classifier_folder, "--data", data, "--out", tmp_path / "m", *names, *FAST
    )
    assert code == 0, err
    assert read_json(tmp_path / "m" / "config.json")["id2label"] == {"0": "so-so", "1": "bad", "2": "good"}


def test_texts_without_labels_below_a_classifier(run, classifier_folder, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{text}\n" for text, _ in toy_rows(400)))
    options = ("--classifier", classifier_folder, "--data", texts, "--out", tmp_path / "m", *FAST)
    code, out, err = run("train", *options)
    assert code == 0, err
    assert "agreement by exit, in %" in out
    assert "scores are agreement with the last exit" in out
    data = ("--data", texts)
    trace = tmp_path / "calibration.safetensors"
    assert run("record", tmp_path / "m", *data, "--out", trace)[0] == 0
    assert run("calibrate", tmp_path / "m", "--trace", trace, "--speedup", "1.2")[0] == 0
    code, out, err = run("evaluate", tmp_path / "m", *data, "--split", "test")
    assert code == 0, err
    assert "agreement" in out


def test_notes_come_before_the_training(run, encoder_folder, tmp_path):
    for name, seed in (("train", 1), ("dev", 2)):
        write_tsv(tmp_path / "d" / f"{name}.tsv", toy_rows(60, seed))
    code, out, err = run("train", "--encoder", encoder_folder, "--data", tmp_path / "d", "--out", tmp_path / "m", *FAST)
    assert code == 0, err
    assert out.count("note: the dev split is the test split") == 1
    assert "the dev split" not in err
    assert out.index("note: the dev split is the test split") < out.index("accuracy by exit")


def test_long_texts_are_mentioned(run, encoder_folder, tmp_path):
    rows = [*toy_rows(40), ("good " * 80, "good")]
    write_tsv(tmp_path / "a.tsv", rows)
    code, out, _ = run(
        "train", "--encoder", encoder_folder, "--data", tmp_path / "a.tsv", "--out", tmp_path / "m", *FAST
    )
    assert code == 0
    assert "1 of 41 texts were longer than 40 tokens and truncated" in out


def test_odd_folder_names_are_printed_as_they_are(run, data, encoder_folder, tmp_path):
    out = tmp_path / "[red]m[ red]"
    code, printed, err = run("train", "--encoder", encoder_folder, "--data", data, "--out", out, *FAST)
    assert code == 0, err
    assert f"wrote {out}" in printed


class TestRefusals:
    @pytest.fixture
    def rejected(self, refused, tmp_path):
        """Check that a training is refused and leaves no file."""

        def check(message, *arguments):
            before = sorted(path.name for path in tmp_path.iterdir())
            refused(message, "train", "--out", tmp_path / "m", *arguments)
            assert sorted(path.name for path in tmp_path.iterdir()) == before

        return check

    def test_nothing_to_start_from(self, rejected, data):
        rejected("one of --encoder, --classifier and --model", "--data", data)

    def test_two_things_to_start_from(self, rejected, data, encoder_folder):
        rejected("one of --encoder", "--data", data, "--encoder", encoder_folder, "--classifier", encoder_folder)

    def test_missing_data(self, rejected, tmp_path, encoder_folder):
        rejected("does not exist", "--data", tmp_path / "none.csv", "--encoder", encoder_folder)

    def test_missing_encoder(self, rejected, data):
        rejected("is neither a folder nor on the hub", "--data", data, "--encoder", "no/such-encoder")

    def test_output_that_exists(self, rejected, data, encoder_folder, tmp_path):
        (tmp_path / "m").mkdir()
        write_json(tmp_path / "m" / "config.json", {"model_type": "exitpoll"})
        rejected(
            "exists already; choose another folder or use --overwrite", "--data", data, "--encoder", encoder_folder
        )

    def test_diversity_weight(self, rejected, data, encoder_folder):
        rejected("below 1", "--data", data, "--encoder", encoder_folder, "--diversity-weight", "1.5")

    def test_unknown_method(self, rejected, data, encoder_folder):
        rejected('Invalid value "bert"', "--data", data, "--encoder", encoder_folder, "--method", "bert")

    def test_unknown_option(self, rejected, data, encoder_folder):
        rejected("--nonsense", "--data", data, "--encoder", encoder_folder, "--nonsense", "1")

    def test_missing_option(self, rejected, encoder_folder):
        rejected("--data", "--encoder", encoder_folder)

    def test_other_labels_than_the_classifiers(self, rejected, tmp_path, classifier_folder):
        write_tsv(tmp_path / "a.tsv", [(f"text {number}", str(number % 2)) for number in range(20)])
        rejected("knows 3 labels, the data 2", "--data", tmp_path / "a.tsv", "--classifier", classifier_folder)

    def test_labels_a_named_classifier_does_not_know(self, rejected, tmp_path):
        save_tiny("bert", tmp_path / "c", classifier=True)
        config = read_json(tmp_path / "c" / "config.json")
        names = {"0": "ham", "1": "spam", "2": "eggs"}
        write_json(tmp_path / "c" / "config.json", config | {"id2label": names, "label2id": {}})
        write_tsv(tmp_path / "a.tsv", [("good", "fine"), ("bad", "foul")] * 10)
        rejected(
            "not among the known labels: ham, spam, eggs", "--data", tmp_path / "a.tsv", "--classifier", tmp_path / "c"
        )

    def test_an_encoder_without_a_tokenizer(self, rejected, data, tmp_path):
        tiny_encoder("bert").save_pretrained(tmp_path / "bare")
        rejected("has no tokenizer", "--data", data, "--encoder", tmp_path / "bare")

    def test_an_encoder_with_texts_without_labels(self, rejected, encoder_folder, tmp_path):
        write_tsv(tmp_path / "a.tsv", [row[:1] for row in toy_rows(40)], ("text",))
        rejected("no labels found", "--data", tmp_path / "a.tsv", "--encoder", encoder_folder)

    def test_heads_alone_on_an_encoder(self, rejected, data, encoder_folder):
        rejected("use --classifier", "--data", data, "--encoder", encoder_folder, "--schedule", "heads")

    def test_a_classifier_without_a_head(self, rejected, data, encoder_folder):
        rejected("lacks weights, classifier.bias among them", "--data", data, "--classifier", encoder_folder)

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
    def test_a_config_that_does_not_fit(self, rejected, data, tmp_path, change, message):
        folder = save_tiny("bert", tmp_path / "e")
        write_json(folder / "config.json", read_json(folder / "config.json") | change)
        rejected(message, "--data", data, "--encoder", folder)

    def test_a_tokenizer_that_is_broken(self, rejected, data, tmp_path):
        folder = save_tiny("bert", tmp_path / "e")
        (folder / "tokenizer.json").write_text("{}")
        rejected("has no tokenizer that can be read", "--data", data, "--encoder", folder)

    def test_a_tokenizer_that_cannot_pad(self, rejected, data, tmp_path):
        folder = save_tiny("bert", tmp_path / "e")
        config = read_json(folder / "tokenizer_config.json")
        write_json(folder / "tokenizer_config.json", {k: v for k, v in config.items() if k != "pad_token"})
        rejected("has no padding token", "--data", data, "--encoder", folder)

    @pytest.mark.parametrize("length", ["0", "2", "3"])
    def test_a_length_without_room_for_a_word(self, rejected, encoder_folder, tmp_path, length):
        write_tsv(tmp_path / "d" / "train.tsv", toy_rows(60, pairs=True), ("text_a", "text_b", "label"))
        options = ("--data", tmp_path / "d", "--encoder", encoder_folder, "--max-length", length)
        rejected(f"max_length {length}", *options)

    def test_weights_that_are_cut_short(self, rejected, data, tmp_path):
        folder = save_tiny("bert", tmp_path / "e")
        weights = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        rejected("cannot be loaded", "--data", data, "--encoder", folder)


def test_exit_zero_is_added_to_a_trained_model(run, data, model_folder, tmp_path):
    options = ("--exit-zero", "ngrams", "--data", data, *FAST)
    code, out, err = run("train", "--model", model_folder, *options, "--out", tmp_path / "m")
    assert code == 0, err
    assert "the head at exit 0 alone is trained" in out
    config, training = (read_json(tmp_path / "m" / f"{name}.json") for name in ("config", "training"))
    assert (config["exit_layers"], config["exit_zero"]) == ([0, 1, 2, 3], "ngrams")
    before = read_json(model_folder / "training.json")
    assert training["scores"]["test"]["exit_scores"][1:] == before["scores"]["test"]["exit_scores"]
    assert run("doctor", tmp_path / "m")[0] == run("doctor", model_folder)[0]


def test_an_encoder_may_start_with_exit_zero(run, data, encoder_folder, tmp_path):
    options = ("--exits", "0", "2", "--data", data, *FAST)
    code, _, err = run("train", "--encoder", encoder_folder, *options, "--out", tmp_path / "m")
    assert code == 0, err
    config = read_json(tmp_path / "m" / "config.json")
    assert (config["exit_layers"], config["exit_zero"]) == ([0, 2], "embeddings")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "use --exit-zero"),
        (("--exit-zero", "ngrams", "--exits", "1"), "of its shape only exit 0 is new"),
        (("--exit-zero", "ngrams", "--schedule", "joint"), "schedule joint trains others too"),
    ],
)
def test_a_trained_model_gets_nothing_but_exit_zero(refused, data, model_folder, tmp_path, options, message):
    refused(message, "train", "--model", model_folder, "--data", data, "--out", tmp_path / "m", *options)
