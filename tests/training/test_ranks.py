"""Training in several processes: the losses of one, written by the first alone, and resumed after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from exitpoll import InputError
from exitpoll.files import read_json
from exitpoll.training import ranks, stages
from exitpoll.training.work import _check_same
from tests.tiny import write_toy_folder
from tests.training.worker import SETTINGS, train_tiny

ROOT = Path(__file__).parents[2]
WORKER = str(Path(__file__).with_name("worker.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = os.environ | {
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT))),
}


def launch(*arguments):
    command = [*TORCHRUN, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def journal_of(folder):
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def together(encoder_folder, tmp_path_factory):
    """The result of two processes that trained undisturbed: its folder, that of their notes, and what they printed."""
    folder, notes = tmp_path_factory.mktemp("together"), tmp_path_factory.mktemp("notes")
    result = launch(WORKER, encoder_folder, folder / "m", notes)
    assert result.returncode == 0, result.stderr
    return folder / "m", notes, result.stdout + result.stderr


def test_two_processes_train_as_one_does(encoder_folder, together, tmp_path):
    folder, _, _ = together
    alone = train_tiny(encoder_folder, tmp_path / "m")
    lines = list(zip(journal_of(folder), journal_of(tmp_path / "m"), strict=True))
    assert len(lines) == 28  # one for every step: 7 in an epoch, 2 epochs, 2 stages
    for of_two, of_one in lines:
        assert (of_two["stage"], of_two["step"]) == (of_one["stage"], of_one["step"])
        assert abs(of_two["train_loss"] - of_one["train_loss"]) < 1e-4
        assert of_two["exit_scores"] == of_one["exit_scores"]  # of 29 calibration texts, none twice
        assert of_two["closest"] == of_one["closest"]  # counts over the texts of all processes
        assert of_two["alpha"] == pytest.approx(of_one["alpha"], abs=1e-4)
    scores = read_json(folder / "training.json")["scores"]["test"]["exit_scores"]
    assert scores == pytest.approx(alone.test_scores)


def test_the_first_process_alone_makes_folders_writes_the_journal_and_publishes(together):
    folder, notes, printed = together
    first, second = (json.loads((notes / f"writes-{rank}.json").read_text()) for rank in (0, 1))
    made = {name for event, name in first if event == "os.mkdir"}
    assert {"m.partial", "1-last", "2-heads", "checkpoint-1", "finished"} <= made
    assert ["os.rename", "finished"] in first
    assert ["open", "training.jsonl"] in first
    assert {event for event, _ in second} == {"open"}  # no folder made, nothing renamed or removed
    own = {"rng_state_1.pth", "train-1.npy", "calibration-1.npy"}  # its random generators, and features of the texts
    assert {name for _, name in second} <= own
    assert [path.name for path in folder.parent.iterdir()] == ["m"]
    assert "note" not in printed


def test_kills_end_all_processes_and_resume_to_the_same_weights(encoder_folder, together, tmp_path):
    """Kill -9 the first process, then the second, at other steps."""
    folder, _, _ = together
    for kill, resume in (("0:5", []), ("1:9", ["--resume"])):
        started = time.monotonic()
        result = launch(WORKER, encoder_folder, tmp_path / "m", tmp_path, *resume, "--kill", kill)
        assert result.returncode != 0
        assert time.monotonic() - started < 60
        assert not (tmp_path / "m").exists()
        for rank in (0, 1):
            assert not Path("/proc", (tmp_path / f"pid-{rank}").read_text()).exists()
    result = launch(WORKER, encoder_folder, tmp_path / "m", tmp_path, "--resume")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "m" / "training.jsonl").read_text() == (folder / "training.jsonl").read_text()
    first, second = load_file(tmp_path / "m" / "model.safetensors"), load_file(folder / "model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first | second)


def test_the_command_line_prints_once(encoder_folder, tmp_path):
    data = write_toy_folder(tmp_path / "data")
    options = ["--encoder", encoder_folder, "--data", data, "--epochs", "1", "--logs-per-epoch", "1", "--json"]
    result = launch("-m", "exitpoll", "train", *options, "--out", tmp_path / "m")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["out"] == str(tmp_path / "m")  # one object
    assert result.stderr.count("step 3/3") == 1
    assert result.stderr.count("wrote ") == 1
    assert "Warning" not in result.stderr


def test_an_error_is_printed_once():
    result = launch("-m", "exitpoll", "train", "--epochs", "1.5")
    assert result.returncode != 0
    assert result.stderr.count("exitpoll: ") == 1


class Two:
    """Stands for the second of two processes."""

    num_processes, process_index = 2, 1


def test_a_batch_is_divided(monkeypatch):
    monkeypatch.setattr(ranks, "processes", Two)
    assert ranks.split_evenly(16) == 8
    with pytest.raises(InputError, match="batch_size 7 cannot be divided among 2 processes: use a multiple of 2"):
        ranks.split_evenly(7)
    assert [ranks.own_texts(texts, 8) for texts in (16, 15, 8, 3)] == [8, 7, 0, 0]


def test_resuming_with_another_number_of_processes_is_refused(tmp_path):
    one, two = {"setting": {"epochs": 2}}, {"setting": {"epochs": 2}, "number of": {"processes": 2}}
    for earlier, now in ((one, two), (two, one)):
        with pytest.raises(InputError, match="started with another number of processes: resume with the same"):
            _check_same(tmp_path, earlier, now)
    _check_same(tmp_path, two, two)


def test_a_lost_process_is_named():
    lost = "another process of this training has ended; rerun with resume"
    with pytest.raises(InputError, match=lost), ranks.losses_explained():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2280")
    with pytest.raises(RuntimeError, match="shapes"), ranks.losses_explained():
        raise RuntimeError("shapes differ")


def test_the_precision_of_accelerate_launch_reaches_trainer(monkeypatch, tmp_path):
    assert stages._arguments(SETTINGS, tmp_path, "mean").mixed_precision == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert stages._arguments(SETTINGS, tmp_path, "mean").mixed_precision == "bf16"


def test_sharded_weights_are_gathered(encoder_folder, monkeypatch, tmp_path):
    """On CPUs accelerate does not shard, but the weights take the same way back into the model."""
    usual = train_tiny(encoder_folder, tmp_path / "usual")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    gathered = train_tiny(encoder_folder, tmp_path / "gathered")
    assert gathered.test_scores == usual.test_scores
    first, second = gathered.model.state_dict(), usual.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first | second)
