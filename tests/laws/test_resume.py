"""Law 8: a killed training resumes to the very weights of an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from exitpoll import EarlyExitModel, InputError, TrainingSettings, train
from exitpoll.files import read_json, write_json
from exitpoll.training import clock
from exitpoll.training.methods import NEED_LAST_HEAD
from tests.tiny import tiny_encoder, toy_splits, write_toy_folder

SETTINGS = TrainingSettings(epochs=3, batch_size=16, logs_per_epoch=2)


class Cut(BaseException):
    """Stands for a kill: nothing in between may catch it."""


def run(encoder_folder, tokenizer, out, settings, cut=None, shape=None, **options):
    def stop(progress):
        if cut is not None and (progress.task, progress.done) == cut:
            raise Cut

    torch.manual_seed(0)
    model = EarlyExitModel.from_encoder(encoder_folder, labels=["bad", "good", "so-so"], **shape or {})
    return train(model, tokenizer, toy_splits(), out, settings, on_progress=stop, **options)


def same_weights(first, second):
    first, second = load_file(first / "model.safetensors"), load_file(second / "model.safetensors")
    return all(torch.equal(first[name], second[name]) for name in first | second)


@pytest.mark.parametrize(
    ("options", "cuts"),
    [
        ({"schedule": "joint"}, [("all", 2)]),  # before any checkpoint
        ({"schedule": "joint"}, [("all", 5), ("all", 11), ("all", 16)]),  # in every epoch, again and again
        ({"schedule": "two-stage"}, [("last", 8), ("features of train", 64), ("heads", 16)]),
        ({"schedule": "mixed"}, [("all", 4)]),
        ({"schedule": "heads"}, [("heads", 7)]),
        ({"schedule": "exit-zero"}, [("exit-zero", 7)]),
        ({"schedule": "adapt"}, [("adapt", 7)]),  # to the answers that the model gave before it was cut
        ({"schedule": "alternating"}, [("alternating", 7)]),  # whose turn it is follows from the step
        # Nothing gets better here: it stops after the first scoring and two more, and must not count anew.
        ({"early_stop": 2, "learning_rate": 1e-12, "head_learning_rate": 1e-12, "epochs": 9}, [("all", 8)]),
    ],
)
def test_cut_trainings_resume_to_the_same_place(encoder_folder, tokenizer, tmp_path, options, cuts):
    settings = replace(SETTINGS, **options)
    shape = {"exit_zero": "ngrams", "ngram_buckets": 99} if settings.schedule in NEED_LAST_HEAD else {}
    undisturbed = run(encoder_folder, tokenizer, tmp_path / "undisturbed", settings, shape=shape)
    for number, cut in enumerate(cuts):
        with pytest.raises(Cut):
            run(encoder_folder, tokenizer, tmp_path / "cut", settings, cut, shape, resume=number > 0)
        assert not (tmp_path / "cut").exists()
    resumed = run(encoder_folder, tokenizer, tmp_path / "cut", settings, shape=shape, resume=True)
    assert resumed.test_scores == undisturbed.test_scores
    assert same_weights(tmp_path / "cut", tmp_path / "undisturbed")
    records = [(tmp_path / name / "training.jsonl").read_text() for name in ("cut", "undisturbed")]
    assert records[0] == records[1]  # no line lost, none doubled


def test_a_killed_process_resumes_to_the_same_place(encoder_folder, tmp_path):
    data = write_toy_folder(tmp_path / "data")
    command = [sys.executable, "-c", "from exitpoll.cli.main import main; main()", "train"]
    options = [
        "--encoder",
        encoder_folder,
        "--data",
        data,
        "--epochs",
        "4",
        "--batch-size",
        "8",
        "--logs-per-epoch",
        "1",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def train_to(name, *more):
        line = [*command, *map(str, options), "--out", str(tmp_path / name), *more]
        return subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    killed = train_to("killed")
    deadline = time.monotonic() + 300
    while len(list((tmp_path / "killed.partial").glob("1-all/checkpoint-*/trainer_state.json"))) < 1:
        assert killed.poll() is None, killed.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed").exists()
    assert train_to("killed", "--resume").wait() == 0
    assert train_to("undisturbed").wait() == 0
    assert same_weights(tmp_path / "killed", tmp_path / "undisturbed")


def test_resuming_with_other_settings_is_refused(encoder_folder, tokenizer, tmp_path):
    with pytest.raises(Cut):
        run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS, ("all", 4))
    other = replace(SETTINGS, learning_rate=1e-4)
    with pytest.raises(InputError, match="started with another setting learning_rate: resume with the same"):
        run(encoder_folder, tokenizer, tmp_path / "m", other, resume=True)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"pooling": "first"}, "model pooling"),
        ({"head": "linear"}, "model head"),
        ({"exits": [1, 3]}, "model exit_layers"),
    ],
)
def test_resuming_another_model_is_refused(encoder_folder, tokenizer, tmp_path, options, difference):
    with pytest.raises(Cut):
        run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS, ("all", 4))
    with pytest.raises(InputError, match=f"started with another {difference}: resume with the same"):
        run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS, shape=options, resume=True)


def test_resuming_another_encoder_is_refused(encoder_folder, tokenizer, tmp_path):
    with pytest.raises(Cut):
        run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS, ("all", 4))
    tiny_encoder("bert", seed=1).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="started with another model encoder"):
        run(tmp_path / "other", tokenizer, tmp_path / "m", SETTINGS, resume=True)


def test_starting_again_without_a_word_is_refused(encoder_folder, tokenizer, tmp_path):
    with pytest.raises(Cut):
        run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS, ("all", 4))
    with pytest.raises(InputError, match="holds an interrupted training: use resume, or overwrite to discard it"):
        run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS)


def test_overwrite_drops_what_was_cut_off(encoder_folder, tokenizer, tmp_path):
    with pytest.raises(Cut):
        run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS, ("all", 4))
    run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_resuming_nothing_is_training(encoder_folder, tokenizer, tmp_path):
    run(encoder_folder, tokenizer, tmp_path / "m", SETTINGS, resume=True)
    assert json.loads((tmp_path / "m" / "training.json").read_text())["texts"]["train"] == 96


def test_the_time_of_all_sessions_counts(encoder_folder, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "INTERVAL", 0.0)
    for resume in (False, True):
        with pytest.raises(Cut):
            run(encoder_folder, tokenizer, tmp_path / "cut", SETTINGS, ("all", 5), resume=resume)
    path = tmp_path / "cut.partial" / "seconds.json"
    assert 0 <= read_json(path)["seconds"] < 600
    write_json(path, {"seconds": 1000})
    trained = run(encoder_folder, tokenizer, tmp_path / "cut", SETTINGS, resume=True)
    assert trained.seconds > 1000
    assert read_json(tmp_path / "cut" / "training.json")["seconds"] > 1000
