"""exitpoll record: a trace of the split that was asked for, or one line on why there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time

from safetensors.torch import load_file, save_file

from exitpoll import Trace
from tests.tiny import toy_rows, write_tsv


def test_it_prints_what_it_wrote(recorded, run, tmp_path):
    out = tmp_path / "t.safetensors"
    code, printed, err = run("record", recorded / "model", "--data", recorded / "data", "--out", out)
    assert code == 0, err
    assert "300 texts, 3 exits, 3 classes" in printed
    assert "one text at a time" in printed
    trace = Trace.load(out)
    assert trace.about["split"] == "calibration"
    assert trace.about["metric"] == "accuracy"


def test_a_file_without_labels(recorded, run, tmp_path):
    (tmp_path / "texts.csv").write_text("text\ngood film\nbad film\n")
    arguments = ("--data", tmp_path / "texts.csv", "--split", "all", "--out", tmp_path / "t")
    code, out, err = run("record", recorded / "model", *arguments)
    assert code == 0, err
    assert "2 texts" in out
    assert Trace.load(tmp_path / "t").labels is None


def test_an_interrupted_recording_leaves_nothing(recorded, tmp_path):
    write_tsv(tmp_path / "d.tsv", toy_rows(4000))
    command = [sys.executable, "-c", "from exitpoll.cli.main import main; main()", "record", recorded / "model"]
    process = subprocess.Popen([*command, "--data", "d.tsv", "--split", "all", "--out", "t"], cwd=tmp_path)
    while process.poll() is None and not list(tmp_path.glob("t.*.partial")):
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["d.tsv"]


class TestRefusals:
    def test_outputs(self, refused, recorded, tmp_path):
        data = ("--data", recorded / "data")
        refused("exists already", "record", recorded / "model", *data, "--out", recorded / "test.safetensors")
        refused("is a folder; name a file", "record", recorded / "model", *data, "--out", tmp_path)
        refused("there is no folder", "record", recorded / "model", *data, "--out", tmp_path / "no" / "t")

    def test_a_model_that_does_not_exist(self, refused, recorded, tmp_path):
        arguments = ("--data", recorded / "data", "--out", tmp_path / "t")
        refused("does not exist, and is not a name on the hub", "record", tmp_path / "none", *arguments)

    def test_models_of_another_kind(self, refused, recorded, encoder_folder, classifier_folder, tmp_path):
        texts = write_tsv(tmp_path / "d.tsv", toy_rows(5))
        arguments = ("--data", texts, "--split", "all", "--out", tmp_path / "t")
        for folder in (encoder_folder, classifier_folder):
            refused("is not an exitpoll model (model_type: bert)", "record", folder, *arguments)
        refused(
            "config.json' is a file; name the model folder", "record", recorded / "model" / "config.json", *arguments
        )
        lacking = shutil.copytree(recorded / "model", tmp_path / "lacking")
        weights = load_file(lacking / "model.safetensors")
        weights.pop("heads.0.out.bias")
        save_file(weights, lacking / "model.safetensors", metadata={"format": "pt"})
        refused("lacks weights, heads.0.out.bias among them", "record", lacking, *arguments)
        (lacking / "model.safetensors").write_bytes(b"junk")
        refused("cannot be loaded", "record", lacking, *arguments)

    def test_a_training_that_cannot_be_read(self, refused, model, tmp_path):
        """Splits cut with another seed would put training texts into the test split."""
        texts = write_tsv(tmp_path / "d.tsv", toy_rows(40))
        (model / "training.json").write_text("{")
        refused("training.json' is broken", "record", model, "--data", texts, "--out", tmp_path / "t")
        (model / "training.json").unlink()
        refused("the seed with which training cut it", "record", model, "--data", texts, "--out", tmp_path / "t")
