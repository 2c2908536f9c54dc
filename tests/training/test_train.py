"""Training: every schedule and problem learns, records and writes its folder; frozen things stay frozen."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from exitpoll import METHODS, EarlyExitModel, InputError, Splits, Texts, TrainingSettings, load_model, train
from exitpoll.files import read_json
from exitpoll.models.tokenizer import tokenize
from exitpoll.training import features, stages
from exitpoll.training.heads_only import FrozenTexts, HeadsOnly, collate
from exitpoll.training.scores import score_exits
from exitpoll.training.trainer import LengthSampler, last_checkpoint
from tests.tiny import LAYERS, save_tiny, tiny_classifier, tiny_config, tokens, toy_splits

ROOT = Path(__file__).parents[2]
FAST = TrainingSettings(epochs=2, batch_size=16, learning_rate=1e-3, head_learning_rate=1e-2, logs_per_epoch=2)
LEARN = replace(FAST, epochs=8, learning_rate=3e-3, head_learning_rate=3e-3, logs_per_epoch=1)


def build(folder, splits=None, seed=0, **options):
    splits = splits or toy_splits()
    torch.manual_seed(seed)
    return EarlyExitModel.from_encoder(
        folder, labels=list(splits.label_names), problem_type=splits.problem_type, **options
    )


def record_of(folder):
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


class TestTrain:
    def test_heads_learn(self, encoder_folder, tokenizer, tmp_path):
        trained = train(build(encoder_folder), tokenizer, toy_splits(384), tmp_path / "m", LEARN)
        assert min(trained.test_scores) > 0.8  # chance is a third

    def test_folder_and_summary(self, encoder_folder, tokenizer, tmp_path):
        trained = train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", FAST)
        names = {path.name for path in (tmp_path / "m").iterdir()}
        assert names >= {"config.json", "model.safetensors", "tokenizer.json", "training.jsonl", "training.json"}
        assert not any(name.endswith((".bin", ".pt", ".pth", ".pkl")) for name in names)
        assert [path.name for path in tmp_path.iterdir()] == ["m"]  # the work is cleared away
        summary = read_json(tmp_path / "m" / "training.json")
        assert set(summary) == {
            *("versions", "settings", "source", "encoder", "data", "pairs", "metric", "exit_layers", "scores", "texts"),
            *("truncated", "notes", "seconds", "train_digest"),
        }
        assert set(summary["source"]) == {"fingerprint", "runtime"}
        assert summary["scores"]["test"]["exit_scores"] == trained.test_scores
        assert summary["settings"]["objective"] == "ensemble"
        assert (summary["encoder"], summary["data"], summary["pairs"]) == (encoder_folder.name, None, False)
        loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
        assert summary["settings"]["strategy"] == "votes"
        assert loaded.config.id2label == {0: "bad", 1: "good", 2: "so-so"}
        assert AutoTokenizer.from_pretrained(tmp_path / "m")("good film")["input_ids"]

    def test_the_folder_around_it_is_made(self, encoder_folder, tokenizer, tmp_path):
        out = tmp_path / "new" / "folder" / "m"
        train(build(encoder_folder), tokenizer, toy_splits(), out, replace(FAST, epochs=1))
        assert out.is_dir()

    def test_a_training_is_described_in_one_line(self, encoder_folder, tokenizer, tmp_path):
        trained = train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", replace(FAST, epochs=1))
        first, *_ = trained.test_scores
        assert repr(trained).startswith(
            f"Trained('{tmp_path / 'm'}', test accuracy in % after layer {{1: {100 * first:.1f}"
        )
        assert "144 texts" in repr(trained)

    def test_training_texts_are_recognized(self, encoder_folder, tokenizer, tmp_path, caplog):
        splits = toy_splits()
        copied = Texts(splits.train.first[:5], None, splits.train.labels[:5])
        with caplog.at_level("INFO", logger="exitpoll"):
            trained = train(
                *(build(encoder_folder), tokenizer, replace(splits, test=copied)),
                *(tmp_path / "m", replace(FAST, epochs=1)),
            )
        assert "5 of 5 test texts are training texts, too" in trained.notes
        assert set(trained.notes) <= set(caplog.messages)
        loaded = load_model(tmp_path / "m")
        assert loaded.overlap(splits.train).share == 1.0
        assert loaded.overlap(Texts(["never seen"])).shared == 0

    def test_a_better_exit_below_the_last_is_named(self, encoder_folder, tokenizer, tmp_path):
        model, settings = build(encoder_folder), replace(LEARN, schedule="heads")  # the last head is not trained
        trained = train(model, tokenizer, toy_splits(384), tmp_path / "m", settings)
        [note] = [note for note in trained.notes if "scores better than the last, after layer 3" in note]
        best = trained.calibration_scores.index(max(trained.calibration_scores))
        assert f"{100 * trained.test_scores[best]:.1f} against {100 * trained.test_scores[-1]:.1f} on the test" in note
        assert note.endswith(f"the best static depth is {best + 1} layers")
        assert note in (tmp_path / "m" / "README.md").read_text()

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_trains(self, method, encoder_folder, tokenizer, tmp_path):
        settings = replace(FAST, method=method, epochs=1)
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", settings)
        assert EarlyExitModel.from_pretrained(tmp_path / "m").config.exit_layers == [1, 2, 3]
        assert read_json(tmp_path / "m" / "training.json")["settings"]["strategy"] == METHODS[method].strategy
        stages = [line["stage"] for line in record_of(tmp_path / "m")]
        expected = ["last"] * 2 + ["heads"] * 2 if METHODS[method].schedule == "two-stage" else ["all"] * 2
        assert stages == expected

    def test_mixed_schedule(self, encoder_folder, tokenizer, tmp_path):
        settings = replace(FAST, schedule="mixed", epochs=1)
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", settings)
        assert [line["stage"] for line in record_of(tmp_path / "m")] == ["last"] * 2 + ["all"] * 2

    def test_alternating_schedule_trains_the_last_head_alone_at_every_other_step(
        self, encoder_folder, tokenizer, tmp_path, monkeypatch
    ):
        step, alone = [0], []
        real = stages._last_exit

        def watched(job):
            loss = real(job)
            return lambda logits, labels: alone.append(step[0]) or loss(logits, labels)

        monkeypatch.setattr(stages, "_last_exit", watched)
        settings = replace(FAST, schedule="alternating", epochs=1)
        trained = train(
            *(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", settings),
            on_progress=lambda progress: step.__setitem__(0, progress.done),
        )
        assert {line["stage"] for line in record_of(tmp_path / "m")} == {"alternating"}
        assert alone == list(range(1, 6, 2))  # of six steps, counted by those done
        assert len(trained.test_scores) == LAYERS

    def test_record(self, encoder_folder, tokenizer, tmp_path):
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", FAST)
        record = record_of(tmp_path / "m")
        assert [line["step"] for line in record] == [3, 6, 9, 12]
        for line in record:
            assert len(line["exit_losses"]) == len(line["exit_accuracies"]) == LAYERS
            assert len(line["alpha"]) == LAYERS - 1
            assert all(0 <= alpha <= 0.2 for alpha in line["alpha"])
            # Three batches of 16 texts between two lines; every head but the first has one nearest head for each.
            assert np.sum(line["closest"], axis=1).tolist() == [0, 48, 48]
            assert np.triu(line["closest"]).sum() == 0

    def test_a_seed_trains_the_same_again(self, encoder_folder, tokenizer, tmp_path):
        runs = [train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / name, FAST) for name in "ab"]
        for first, second in zip(*(run.model.state_dict().values() for run in runs), strict=True):
            assert torch.equal(first, second)

    @pytest.mark.parametrize(
        ("select", "name", "best"),
        [("mean", "mean_score", max), ("last", "last_score", max), ("loss", "mean_loss", min)],
    )
    def test_best_checkpoint_is_kept(self, encoder_folder, tokenizer, tmp_path, select, name, best):
        settings = replace(FAST, epochs=4, learning_rate=3e-3, select=select)
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", settings)
        noted = [line[name] for line in record_of(tmp_path / "m")]
        assert best(noted) != pytest.approx(noted[-1])  # or the last would do
        scores = read_json(tmp_path / "m" / "training.json")["scores"]["calibration"]
        assert scores[name] == pytest.approx(best(noted), abs=1e-5)

    def test_early_stopping(self, encoder_folder, tokenizer, tmp_path):
        settings = replace(FAST, epochs=30, learning_rate=1e-9, head_learning_rate=1e-9, early_stop=2)
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", settings)
        assert len(record_of(tmp_path / "m")) < 10

    def test_progress_counts_every_step(self, encoder_folder, tokenizer, tmp_path):
        seen = []
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", FAST, on_progress=seen.append)
        # Every step, and once more after the steps that are scored.
        assert [progress.done for progress in seen] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12]
        assert all(progress.total == 12 and np.isfinite(progress.loss) for progress in seen)
        assert seen[2].exit_scores is None
        assert seen[-1].exit_scores == record_of(tmp_path / "m")[-1]["exit_scores"]

    def test_progress_shows_the_mean_loss_since_the_last_evaluation(self, encoder_folder, tokenizer, tmp_path):
        seen = {}
        train(
            *(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", FAST),
            on_progress=lambda progress: seen.update({progress.done: progress.loss}),
        )
        for line in record_of(tmp_path / "m"):
            assert seen[line["step"]] == line["train_loss"]

    def test_progress_bars_on_request(self, encoder_folder, tokenizer, tmp_path, capsys):
        settings = replace(FAST, epochs=1)
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", settings)
        assert "step 6/6" not in capsys.readouterr().err
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "n", settings, progress=True)
        assert "step 6/6  loss" in capsys.readouterr().err

    def test_long_texts_are_truncated_counted_and_the_length_is_kept(self, encoder_folder, tokenizer, tmp_path):
        splits = toy_splits()
        splits = replace(splits, test=Texts(["good " * 60, "bad"], None, np.array([1, 0])))
        trained = train(build(encoder_folder), tokenizer, splits, tmp_path / "m", replace(FAST, epochs=1))
        assert trained.truncated == 1
        assert trained.model.config.max_length == 40  # all the positions that the tiny encoder has

    def test_a_static_model_trains(self, encoder_folder, tokenizer, tmp_path):
        model = build(encoder_folder, exits=[2])
        trained = train(model, tokenizer, toy_splits(), tmp_path / "m", replace(FAST, epochs=1))
        assert len(trained.test_scores) == 1
        assert trained.exit_layers == [2]

    @pytest.mark.parametrize("pooling", ["first", "pooler"])
    def test_other_poolings_and_heads_train(self, pooling, encoder_folder, tokenizer, tmp_path):
        model = build(encoder_folder, pooling=pooling, head="linear", shared_head=True)
        before = [weights.clone() for weights in model.heads.parameters()]
        train(model, tokenizer, toy_splits(), tmp_path / "m", replace(FAST, epochs=1))
        assert not any(torch.equal(old, new) for old, new in zip(before, model.heads.parameters(), strict=True))

    def test_the_models_own_length_holds_unless_settings_say_otherwise(self, encoder_folder, tokenizer, tmp_path):
        for settings, expected in ((FAST, 20), (replace(FAST, max_length=12), 12)):
            model = build(encoder_folder, max_length=20)
            train(model, tokenizer, toy_splits(), tmp_path / "m", replace(settings, epochs=1), overwrite=True)
            assert EarlyExitModel.from_pretrained(tmp_path / "m").config.max_length == expected

    def test_bf16_on_a_processor(self, encoder_folder, tokenizer, tmp_path):
        settings = replace(FAST, epochs=1, precision="bf16")
        model, seen = build(encoder_folder), set()
        model.encoder.encoder.layer[0].intermediate.dense.register_forward_hook(
            lambda module, inputs, output: seen.add(output.dtype)
        )
        trained = train(model, tokenizer, toy_splits(), tmp_path / "m", settings)
        assert all(weights.dtype == torch.float32 for weights in trained.model.parameters())
        assert torch.bfloat16 in seen

    def test_heads_have_a_learning_rate_of_their_own(self, encoder_folder, tokenizer, tmp_path):
        model = build(encoder_folder)
        before = {name: weights.clone() for name, weights in model.named_parameters()}
        train(model, tokenizer, toy_splits(), tmp_path / "m", replace(FAST, epochs=1, learning_rate=1e-12))
        for name, weights in model.named_parameters():
            is_head = name.startswith("heads.")
            assert torch.allclose(weights, before[name], rtol=0, atol=1e-9) != is_head, name


class TestProblems:
    def test_multi_label(self, encoder_folder, tokenizer, tmp_path):
        single = toy_splits(384)

        def several(texts):
            return Texts(texts.first, None, np.eye(3, dtype=np.float32)[texts.labels])

        splits = Splits(
            several(single.train),
            several(single.calibration),
            several(single.test),
            single.label_names,
            "multi_label_classification",
            "micro_f1",
        )
        settings = replace(LEARN, epochs=12)
        trained = train(build(encoder_folder, splits), tokenizer, splits, tmp_path / "m", settings)
        assert min(trained.test_scores) > 0.55  # saying yes to everything scores 0.5
        assert record_of(tmp_path / "m")[0]["alpha"] is None

    def test_regression(self, encoder_folder, tokenizer, tmp_path):
        single = toy_splits(384)

        def valued(texts):
            return Texts(texts.first, None, np.array([-1.0, 1.0, 0.0], dtype=np.float32)[texts.labels])

        splits = Splits(
            valued(single.train), valued(single.calibration), valued(single.test), ["score"], "regression", "r2"
        )
        trained = train(build(encoder_folder, splits), tokenizer, splits, tmp_path / "m", LEARN)
        assert max(trained.test_scores) > 0.5
        assert (
            "the ensemble objective of method ensemble is not defined for regression: the heads are trained with the "
            "relevancy objective" in trained.notes
        )
        settings = read_json(tmp_path / "m" / "training.json")["settings"]
        assert (settings["objective"], settings["strategy"]) == ("relevancy", "patience")
        settings = replace(FAST, objective="ensemble")
        with pytest.raises(InputError, match="not defined for regression: use the relevancy objective"):
            train(build(encoder_folder, splits), tokenizer, splits, tmp_path / "n", settings)


class TestWithoutLabels:
    @pytest.mark.parametrize("classes", [1, 3])
    def test_heads_below_a_classifier_learn_its_answers(self, tokenizer, tmp_path, classes):
        folder = tmp_path / "classifier"
        tiny_classifier("bert", classes=classes).save_pretrained(folder)
        model = EarlyExitModel.from_classifier(folder)
        before = features.record_logits(model, tokenize(toy_splits().test, tokenizer, 40), tokenizer)
        trained = train(model, tokenizer, without_labels(toy_splits(384)), tmp_path / "m", LEARN)
        assert trained.metric == "agreement"
        assert trained.test_scores[-1] == 1.0
        untrained = score_exits(before, None, "agreement", model.config.problem_type)["exit_scores"]
        assert trained.test_scores[-2] > max(untrained[-2], 0.6)
        assert "the texts have no labels: heads learn the last exit's answers" in trained.notes
        assert "scores are agreement with the last exit, after layer 3" in str(trained.notes)
        summary = read_json(tmp_path / "m" / "training.json")
        assert (summary["metric"], summary["settings"]["objective"]) == ("agreement", "relevancy")

    def test_several_labels(self, tokenizer, tmp_path):
        classifier = tiny_classifier("bert")
        classifier.config.problem_type = "multi_label_classification"
        classifier.save_pretrained(tmp_path / "classifier")
        model = EarlyExitModel.from_classifier(tmp_path / "classifier")
        trained = train(model, tokenizer, without_labels(toy_splits(384)), tmp_path / "m", LEARN)
        assert trained.test_scores[-2] > 0.4  # all three labels right; by chance an eighth
        assert trained.test_scores[-1] == 1.0

    def test_another_objective_learns_the_answers_as_labels(self, classifier_folder, tokenizer, tmp_path):
        model, settings = EarlyExitModel.from_classifier(classifier_folder), replace(LEARN, objective="relevancy")
        trained = train(model, tokenizer, without_labels(toy_splits(384)), tmp_path / "m", settings)
        assert trained.test_scores[-2] > 0.6

    def test_names_of_classes_stay_numbers_unless_given(self, classifier_folder, tokenizer, tmp_path):
        splits = without_labels(toy_splits())
        numbered = train(EarlyExitModel.from_classifier(classifier_folder), tokenizer, splits, tmp_path / "a", FAST)
        assert "the classifier does not name its classes: they stay LABEL_0, LABEL_1, LABEL_2" in numbered.notes
        model = EarlyExitModel.from_classifier(classifier_folder, labels=["a", "b", "c"])
        assert "LABEL_0" not in str(train(model, tokenizer, splits, tmp_path / "b", FAST).notes)
        assert EarlyExitModel.from_pretrained(tmp_path / "b").config.id2label == {0: "a", 1: "b", 2: "c"}

    def test_an_encoder_needs_labels(self, encoder_folder, tokenizer, tmp_path):
        with pytest.raises(InputError, match="use labelled texts, or start from a classifier"):
            train(build(encoder_folder), tokenizer, without_labels(toy_splits()), tmp_path / "m", FAST)

    def test_so_does_training_a_classifier_further(self, classifier_folder, tokenizer, tmp_path):
        model, settings = EarlyExitModel.from_classifier(classifier_folder), replace(FAST, schedule="joint")
        with pytest.raises(InputError, match="the texts have no labels"):
            train(model, tokenizer, without_labels(toy_splits()), tmp_path / "m", settings)

    def test_splits_with_and_without_labels(self, classifier_folder, tokenizer, tmp_path):
        splits = replace(toy_splits(), test=without_labels(toy_splits()).test)
        with pytest.raises(InputError, match="there are no labels in the test split, but in others"):
            train(EarlyExitModel.from_classifier(classifier_folder), tokenizer, splits, tmp_path / "m", FAST)
        assert not list(tmp_path.iterdir())


def without_labels(splits):
    """The same texts without labels, as load_splits gives them."""
    parts = {name: replace(getattr(splits, name), labels=None) for name in ("train", "calibration", "test")}
    return replace(splits, **parts, label_names=(), metric="agreement")


class TestFrozenHeads:
    def test_a_classifier_keeps_its_answers_to_the_last_bit(self, tokenizer, tmp_path):
        save_tiny("bert", tmp_path / "classifier", classifier=True)
        model = EarlyExitModel.from_classifier(tmp_path / "classifier", labels=toy_splits().label_names)
        before = [head.out.weight.clone() for head in model.heads]
        train(model, tokenizer, toy_splits(), tmp_path / "m", FAST)  # no schedule is named
        classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "classifier").eval()
        trained = EarlyExitModel.from_pretrained(tmp_path / "m").eval()
        with torch.no_grad():
            assert torch.equal(trained(**tokens(0)).logits, classifier(**tokens(0)).logits)
        assert not any(torch.equal(old, head.out.weight) for old, head in zip(before, trained.heads, strict=True))
        assert {line["stage"] for line in record_of(tmp_path / "m")} == {"heads"}

    def test_a_shared_head_below_a_classifier(self, classifier_folder, tokenizer, tmp_path):
        model = EarlyExitModel.from_classifier(classifier_folder, shared_head=True)
        train(model, tokenizer, toy_splits(), tmp_path / "m", replace(FAST, schedule="heads", epochs=1))
        assert len(EarlyExitModel.from_pretrained(tmp_path / "m").heads) == 1

    def test_the_second_stage_leaves_encoder_and_last_head_alone(self, encoder_folder, tokenizer, tmp_path):
        model = build(encoder_folder)
        before = {name: weights.clone() for name, weights in model.state_dict().items()}
        train(model, tokenizer, toy_splits(), tmp_path / "m", replace(FAST, schedule="heads", epochs=1))
        changed = {name for name, weights in model.state_dict().items() if not torch.equal(weights, before[name])}
        assert changed
        assert all(name.startswith(("heads.0.", "heads.1.")) for name in changed)

    @pytest.mark.parametrize("kind", ["encoder", "classifier"])
    def test_exit_zero_learns_while_the_rest_stays_the_same(
        self, encoder_folder, classifier_folder, tokenizer, tmp_path, kind
    ):
        shape = {"exit_zero": "ngrams", "ngram_buckets": 99}
        if kind == "encoder":
            model = build(encoder_folder, **shape)
        else:
            model = EarlyExitModel.from_classifier(classifier_folder, shared_head=True, **shape)
        before = {name: weights.clone() for name, weights in model.state_dict().items()}
        settings = replace(FAST, schedule="exit-zero", ngram_learning_rate=0.5, epochs=6)
        trained = train(model, tokenizer, toy_splits(), tmp_path / "m", settings)
        changed = {name for name, weights in model.state_dict().items() if not torch.equal(weights, before[name])}
        assert changed == {name for name in before if name.startswith("heads.0.")}
        assert trained.test_scores[0] > 0.6  # of three classes
        assert "the head at exit 0 alone is trained" in " ".join(trained.notes)

    @pytest.mark.parametrize("schedule", ["joint", "two-stage", "heads"])
    def test_exit_zero_learns_with_the_others(self, encoder_folder, tokenizer, tmp_path, schedule):
        model = build(encoder_folder, exit_zero="embeddings")
        before = {name: weights.clone() for name, weights in model.heads[0].named_parameters()}
        train(model, tokenizer, toy_splits(), tmp_path / "m", replace(FAST, schedule=schedule, epochs=1))
        assert not any(torch.equal(weights, before[name]) for name, weights in model.heads[0].named_parameters())

    def test_exit_zero_can_be_trained_alone_only_where_there_is_one(self, encoder_folder, tokenizer, tmp_path):
        model, settings = build(encoder_folder), replace(FAST, schedule="exit-zero")
        with pytest.raises(InputError, match=r"exits \[1, 2, 3\] have no exit 0 to train"):
            train(model, tokenizer, toy_splits(), tmp_path / "m", settings)

    @pytest.mark.parametrize("pooling", ["mean", "attention"])
    def test_features_give_what_the_model_gives(self, encoder_folder, tokenizer, tmp_path, monkeypatch, pooling):
        model = build(encoder_folder, exit_zero="ngrams", ngram_buckets=99, pooling=pooling).eval()
        torch.nn.init.normal_(model.heads[0].ngrams.weight)
        for query in model.attentions.parameters():
            torch.nn.init.normal_(query)
        splits = toy_splits()
        texts = tokenize(splits.test, tokenizer, 40)
        monkeypatch.setattr(features, "BATCH_SIZE", 5)
        logits = features.record_logits(model, texts, tokenizer)
        monkeypatch.setattr(features, "BATCH_SIZE", 7)
        for exits in (1, LAYERS):
            read = features.record_features(model, texts, tokenizer, tmp_path / "features.npy", exits=exits)
            frozen = FrozenTexts(read, splits.test.labels)
            with torch.no_grad():
                output = HeadsOnly(model, exits)(**collate([frozen[row] for row in range(len(frozen))]))
            half = pooling == "attention"  # tokens are kept in half precision
            np.testing.assert_allclose(output.exit_logits.numpy(), logits, atol=1e-2 if half else 1e-5)

    def test_attention_is_learned_on_a_frozen_encoder(self, classifier_folder, tokenizer, tmp_path):
        model = EarlyExitModel.from_classifier(classifier_folder, pooling="attention", exit_zero="ngrams")
        settings = replace(FAST, objective="relevancy")
        train(model, tokenizer, toy_splits(), tmp_path / "m", settings)
        queries = list(EarlyExitModel.from_pretrained(tmp_path / "m").attentions.parameters())
        assert len(queries) == LAYERS - 1
        assert all(query.abs().max() > 0 for query in queries)

    @pytest.mark.parametrize(
        ("options", "message"), [({"shared_head": True}, "use own heads"), ({"exits": [2]}, "leave no head to train")]
    )
    def test_refuses_at_once_what_has_no_heads_to_train(self, encoder_folder, tokenizer, tmp_path, options, message):
        model = build(encoder_folder, **options)
        with pytest.raises(InputError, match=message):
            train(model, tokenizer, toy_splits(), tmp_path / "m", replace(FAST, method="deebert"))
        assert not list(tmp_path.iterdir())


class TestRefusals:
    def test_an_output_folder_that_exists(self, encoder_folder, tokenizer, tmp_path):
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "precious").touch()
        for overwrite in (False, True):
            with pytest.raises(InputError, match="exists and is not an exitpoll model folder"):
                train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", FAST, overwrite=overwrite)
        assert (tmp_path / "m" / "precious").exists()

    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    def test_a_folder_that_a_running_training_writes(self, encoder_folder, tokenizer, tmp_path, options):
        messages = []

        def train_again(progress):
            with pytest.raises(InputError) as caught:
                train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", FAST, **options)
            messages.append(str(caught.value))

        settings = replace(FAST, epochs=1)
        train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", settings, on_progress=train_again)
        assert all(f"is being written by train, process {os.getpid()}" in message for message in messages)
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    @pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
    def test_a_foreign_folder_where_the_work_would_be(self, encoder_folder, tokenizer, tmp_path, options):
        (tmp_path / "m.partial").mkdir()
        (tmp_path / "m.partial" / "precious").touch()
        with pytest.raises(InputError, match="exists and is not the work folder of a training"):
            train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", FAST, **options)
        assert (tmp_path / "m.partial" / "precious").exists()

    def test_a_tokenizer_of_another_encoder(self, tokenizer, tmp_path):
        config = tiny_config("bert")
        config.vocab_size = 20
        AutoModel.from_config(config).save_pretrained(tmp_path / "small")
        with pytest.raises(InputError, match="the encoder 20: they do not belong together"):
            train(build(tmp_path / "small"), tokenizer, toy_splits(), tmp_path / "m", FAST)

    def test_diversity_weight(self, encoder_folder, tokenizer, tmp_path):
        with pytest.raises(InputError, match=r"diversity weight 1.0 must be at least 0 and below 1"):
            train(build(encoder_folder), tokenizer, toy_splits(), tmp_path / "m", replace(FAST, diversity_weight=1.0))
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"label_names": ["so-so", "good", "bad"]}, "use one order"),
            ({"label_names": ["bad", "good"]}, "knows 3 labels, the data 2: bad, good"),
            ({"problem_type": "multi_label_classification"}, "the data for multi_label_classification"),
        ],
    )
    def test_a_model_of_other_labels_or_another_problem(self, encoder_folder, tokenizer, tmp_path, change, message):
        with pytest.raises(InputError, match=message):
            train(build(encoder_folder), tokenizer, replace(toy_splits(), **change), tmp_path / "m", FAST)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("split", "texts", "message"),
        [
            ("test", Texts([], None, np.array([], dtype=np.int64)), "the test split has no texts"),
            ("test", Texts(["a"], ["b"], np.array([0])), "the texts of the test split are pairs, those of the train"),
            ("train", Texts(["a", "b"], None, np.array([0])), r"have the shape \(1,\), not \(2,\)"),
            ("train", Texts(["a", "b"], None, np.array([0, 3])), "must be integers from 0 to 2"),
            ("calibration", Texts(["a", "b"], None, np.array([0.5, 1])), "must be integers from 0 to 2"),
            ("calibration", Texts(["a", "b"], None, np.array(["good", "bad"])), "must be integers from 0 to 2"),
        ],
    )
    def test_texts_that_cannot_be_used(self, encoder_folder, tokenizer, tmp_path, split, texts, message):
        with pytest.raises(InputError, match=message):
            train(build(encoder_folder), tokenizer, replace(toy_splits(), **{split: texts}), tmp_path / "m", FAST)
        assert not list(tmp_path.iterdir())

    def test_arguments_of_another_kind(self, encoder_folder, tokenizer, tmp_path):
        model = build(encoder_folder)
        cases: list[tuple[Any, str]] = [
            (("bert", tokenizer, toy_splits()), "model must be of the kind EarlyExitModel, not str"),
            ((model, "bert", toy_splits()), "tokenizer must be of the kind PreTrainedTokenizerBase, not str"),
            ((model, tokenizer, ["good film"]), "splits must be of the kind Splits, not list"),
            ((model, tokenizer, replace(toy_splits(), metric="bleu")), "metric 'bleu' does not score"),
            ((model, tokenizer, replace(toy_splits(), problem_type="ranking")), "problem type 'ranking' is unknown"),
        ]
        for (wrong_model, wrong_tokenizer, wrong_splits), message in cases:
            with pytest.raises(InputError, match=message):
                train(wrong_model, wrong_tokenizer, wrong_splits, tmp_path / "m", FAST)

    def test_a_loss_of_nan_stops_and_keeps_the_last_checkpoint(self, encoder_folder, tokenizer, tmp_path):
        model = build(encoder_folder)

        def poison(progress):
            if progress.done == 4:
                with torch.no_grad():
                    model.heads[0].out.bias.fill_(float("nan"))

        with pytest.raises(InputError) as caught:
            train(model, tokenizer, toy_splits(), tmp_path / "m", FAST, on_progress=poison)
        message = str(caught.value)
        assert "the loss is nan at step 5 with learning rates up to" in message
        assert "checkpoint-3" in message
        assert "lower learning rates, and overwrite" in message
        assert (tmp_path / "m.partial" / "1-all" / "checkpoint-3" / "model.safetensors").exists()
        assert not (tmp_path / "m").exists()

    def test_a_broken_model_is_not_saved_as_a_checkpoint(self, encoder_folder, tokenizer, tmp_path):
        model = build(encoder_folder)

        def poison(progress):
            if progress.done == 6:  # scored and saved next
                with torch.no_grad():
                    model.heads[0].out.bias.fill_(float("inf"))

        with pytest.raises(InputError, match=r"the loss on the calibration split is (nan|inf) at step"):
            train(model, tokenizer, toy_splits(), tmp_path / "m", FAST, on_progress=poison)
        assert last_checkpoint(tmp_path / "m.partial" / "1-all").name == "checkpoint-3"


def test_the_order_of_an_epoch_follows_from_seed_and_epoch():
    lengths = np.random.default_rng(0).integers(1, 50, size=400)

    def order(seed, epoch):
        sampler = LengthSampler(lengths, 16, seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)
    assert sorted(order(0, 1)) == list(range(400))
    batches = np.array(order(0, 1)).reshape(-1, 16)
    assert np.mean([np.ptp(lengths[batch]) for batch in batches]) < 15  # a random batch spans 45


def test_a_checkpoint_that_a_kill_cut_short_does_not_count(tmp_path):
    for step, state in ((2, '{"global_step": 2}'), (4, '{"glob'), (6, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
            (tmp_path / f"checkpoint-{step}" / name).touch()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-8").mkdir()
    (tmp_path / "checkpoint-8" / "trainer_state.json").write_text('{"global_step": 8}')
    (tmp_path / "checkpoint-best").mkdir()
    assert last_checkpoint(tmp_path).name == "checkpoint-2"
    assert last_checkpoint(tmp_path / "none") is None
