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
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from exitpoll import InputError
from exitpoll.files import read_json
from exitpoll.training import ranks
from exitpoll.training.work import _check_same
from tests.tiny import write_toy_folder
from tests.training.worker import train_tiny

ROOT = Path(__file__).parents[2]
WORKER = str(Path(__file__).with_name("worker.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = os.environ | {
    "ACCELERATE_USE_CPU": "true",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT))),
}


ACCELERATE = [
    *(sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
]


def launch(*arguments, launcher=TORCHRUN):
    command = [*launcher, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


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


def test_accelerate_launch_trains_as_torchrun_does(encoder_folder, together, tmp_path):
    folder, _, _ = together
    result = launch(WORKER, encoder_folder, tmp_path / "m", tmp_path, launcher=ACCELERATE)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "m" / "training.jsonl").read_text() == (folder / "training.jsonl").read_text()
    assert all((tmp_path / f"writes-{rank}.json").exists() for rank in (0, 1))  # there were two


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
    """Kill -9 the first process in the first stage, then the second process in the second stage."""
    folder, _, _ = together
    for kill, resume in (("0:1:5", []), ("1:2:9", ["--resume"])):
        started = time.monotonic()
        result = launch(WORKER, encoder_folder, tmp_path / "m", tmp_path, *resume, "--kill", kill)
        assert result.returncode != 0
        assert (tmp_path / "killed").read_text() == kill.split(":", 1)[1]
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


FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "false",
    "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
    "FSDP_MIN_NUM_PARAMS": "1234",
}


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


@pytest.fixture
def accelerate_states(monkeypatch):
    """What accelerate is set to for every stage of a training: its state, and the FSDP settings that it is given."""
    found, begin = [], AcceleratorState.__init__

    def note(self, *given, fsdp_plugin=None, **options):
        begin(self, *given, fsdp_plugin=fsdp_plugin, **options)
        if "_from_accelerator" in options:
            found.append((self.mixed_precision, fsdp_plugin))

    monkeypatch.setattr(AcceleratorState, "__init__", note)
    yield found
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_the_precision_of_accelerate_launch_reaches_accelerate(
    encoder_folder, monkeypatch, tmp_path, precision, accelerate_states
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
    train_tiny(encoder_folder, tmp_path / "m")
    assert accelerate_states == [(precision, None)] * 2  # two stages


def test_the_fsdp_settings_of_accelerate_launch_reach_accelerate(
    encoder_folder, monkeypatch, tmp_path, accelerate_states
):
    """As far as without GPUs, on which alone accelerate shards: the settings that it is given."""
    for name, value in FSDP.items():
        monkeypatch.setenv(name, value)
    train_tiny(encoder_folder, tmp_path / "m")
    assert len(accelerate_states) == 2
    for _, plugin in accelerate_states:
        assert plugin.fsdp_version == 2
        assert plugin.reshard_after_forward is False
        assert plugin.auto_wrap_policy.__name__ == "size_based_auto_wrap_policy"
        assert plugin.min_num_params == 1234


def test_sharded_weights_are_gathered(encoder_folder, monkeypatch, tmp_path):
    """On CPUs accelerate does not shard, but the weights take the same way back into the model."""
    usual = train_tiny(encoder_folder, tmp_path / "usual")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    gathered = train_tiny(encoder_folder, tmp_path / "gathered")
    assert gathered.test_scores == usual.test_scores
    first, second = gathered.model.state_dict(), usual.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first | second)
