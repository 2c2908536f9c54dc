"""The doctor finds what is missing, changed or left over in a model folder, and changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from exitpoll import InputError, Policy, Trace, calibrate
from exitpoll.cli.doctor import Level, examine, health_of
from exitpoll.files import locked, read_json, write_json


@pytest.fixture(scope="module")
def healthy(tmp_path_factory, recorded, exported_folder):
    """A calibrated model with an export that has a policy of its own."""
    folder = shutil.copytree(recorded / "model", tmp_path_factory.mktemp("healthy") / "model")
    policy = calibrate(Trace.load(recorded / "calibration.safetensors"), "margin", speedup=1.2)
    policy.save(folder / "policy.json")
    shutil.copytree(exported_folder, folder / "onnx")
    Policy("margin", 0.9).save(folder / "onnx" / "policy.json")
    return folder


@pytest.fixture
def folder(healthy, tmp_path):
    return shutil.copytree(healthy, tmp_path / "model")


def worst(folder, topic, **options):
    """Return the findings on a topic that are not good."""
    return [row for row in examine(folder, **options) if row.topic == topic and row.level is not Level.OK]


def test_a_healthy_folder(folder):
    findings = examine(folder)
    texts = {row.topic: row.text for row in findings}
    assert [row for row in findings if row.level is not Level.OK and row.topic != "onnx"] == []
    assert "config.json, tokenizer.json, model.safetensors, training.json" in texts["files"]
    assert "unchanged since the training: fingerprint" in texts["weights"]
    assert f"torch {version('torch')}" in texts["versions"]
    assert texts["leftovers"] == "none, and no job is writing here"
    assert "files are as exported" in "".join(row.text for row in findings if row.topic == "onnx")


def test_nothing_is_changed(folder):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}
    examine(folder)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")} == before


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    if name == "config.json":
        with pytest.raises(ValueError, match="is not an exitpoll model folder"):
            examine(folder)
        return
    [finding] = worst(folder, "files", load_weights=False)
    assert finding.level is Level.BROKEN
    assert name in finding.text


def test_a_flipped_byte_of_the_weights(folder):
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    [finding] = worst(folder, "weights")
    assert finding.level is Level.BROKEN
    assert "changed since the training" in finding.text
    assert worst(folder, "weights", load_weights=False) == []


def test_weights_that_cannot_be_read(folder):
    (folder / "model.safetensors").write_bytes(b"nonsense")
    [finding] = worst(folder, "weights")
    assert finding.level is Level.BROKEN


def test_a_broken_summary_of_the_training(folder):
    (folder / "training.json").write_text("{")
    assert [finding.level for finding in worst(folder, "training", load_weights=False)] == [Level.BROKEN]
    (folder / "training.json").unlink()
    assert [finding.level for finding in worst(folder, "training", load_weights=False)] == [Level.WARNING]


def test_training_texts_that_cannot_be_recognized(folder):
    training = read_json(folder / "training.json")
    write_json(folder / "training.json", {key: value for key, value in training.items() if key != "train_digest"})
    assert [finding.level for finding in worst(folder, "overlap", load_weights=False)] == [Level.WARNING]
    write_json(folder / "training.json", training | {"train_digest": {"texts": 1, "hashes": "?"}})
    assert [finding.level for finding in worst(folder, "training", load_weights=False)] == [Level.BROKEN]


@pytest.mark.parametrize(("newer_major", "level"), [(1, Level.WARNING), (0, Level.OK)])
def test_other_versions(folder, newer_major, level):
    written = f"{int(version('tokenizers').split('.')[0]) + newer_major}.999"
    training = read_json(folder / "training.json")
    write_json(folder / "training.json", training | {"versions": training["versions"] | {"tokenizers": written}})
    rows = [row for row in examine(folder, load_weights=False) if row.topic == "versions"]
    assert max(row.level for row in rows) is level
    assert written in "".join(row.text for row in rows)


def test_no_policy(folder):
    (folder / "policy.json").unlink()
    [finding] = worst(folder, "policy", load_weights=False)
    assert (finding.level, "calibrate first" in finding.text) == (Level.WARNING, True)


def test_a_policy_of_another_model(folder):
    policy = read_json(folder / "policy.json")
    policy["certificate"]["source"]["fingerprint"] = "0" * 16
    write_json(folder / "policy.json", policy)
    [finding] = worst(folder, "policy", load_weights=False)
    assert (finding.level, "calibrated for fingerprint" in finding.text) == (Level.BROKEN, True)


def test_a_policy_that_asks_exits_the_model_does_not_have(folder):
    Policy("margin", 0.9, exit_layers=(2, 5)).save(folder / "policy.json")
    Policy("margin", 0.9, exit_layers=(2, 5)).save(folder / "onnx" / "policy.json")
    for topic in ("policy", "onnx"):
        [finding] = worst(folder, topic, load_weights=False)
        assert "no exit after layer 5; exits are after layers 1, 2, 3" in finding.text


def test_a_flipped_byte_of_an_export(folder):
    path = next((folder / "onnx").glob("*.onnx"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    [finding, *_] = worst(folder, "onnx", load_weights=False)
    assert finding.level is Level.BROKEN
    assert path.name in finding.text


def test_an_export_of_other_weights(folder):
    training = read_json(folder / "training.json")
    training["source"]["fingerprint"] = "0" * 16
    write_json(folder / "training.json", training)
    assert "was exported before" in worst(folder, "onnx", load_weights=False)[0].text


def test_an_export_alone(folder):
    findings = examine(folder / "onnx")
    assert findings[0].topic == "export"
    assert health_of(findings) is Level.WARNING  # its policy has no certificate


def test_leftovers_are_named(folder):
    (folder.parent / "model.partial").mkdir()
    (folder / "policy.json.123.aside").write_text("")
    assert len(worst(folder, "leftovers", load_weights=False)) == 2


def test_a_running_job_is_named_and_a_killed_one_told_apart(folder):
    with locked(folder, "train"):
        [finding] = worst(folder, "leftovers", load_weights=False)
        assert f"process {os.getpid()} on {platform.node()}" in finding.text
        lock = read_json(folder.parent / "model.lock")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_json(folder.parent / "model.lock", lock | {"pid": gone.pid})
    [finding] = worst(folder, "leftovers", load_weights=False)
    assert "of a process that was killed" in finding.text


JUNK = (None, 0, -1, 1e308, True, "", "x", [], [None], {}, {"a": None}, "\x1b[31m", 10**30)


@pytest.mark.parametrize("name", ["config.json", "training.json", "policy.json", "onnx/exported.json"])
def test_whatever_a_file_holds_there_are_findings(folder, name):
    path = folder / name
    content = read_json(path)
    for key in content:
        for junk in JUNK:
            write_json(path, content | {key: junk})
            try:
                assert examine(folder, load_weights=False)
            except InputError as error:
                assert "is not an exitpoll model folder" in str(error)  # noqa: PT017
