"""An export has a policy that holds for it, carried over or calibrated again, and is written atomically."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from onnxruntime import InferenceSession

from exitpoll import Engine, InputError, Policy, Texts, Trace, calibrate, load_model, record
from exitpoll.data.progress import Progress
from exitpoll.decide.certificate import Speedup
from exitpoll.export import export
from exitpoll.export.export import Exported, export_model
from exitpoll.export.graphs import random_texts
from exitpoll.export.quantize import MOST_TEXTS, quantize
from tests.samples import certified
from tests.tiny import LAYERS, tiny_tokenizer, toy_texts, write_toy_folder

TEXTS = toy_texts(300, 8)


@pytest.fixture(scope="module")
def calibrated(model_folder, tmp_path_factory):
    """A model with a policy that was calibrated on its own trace."""
    folder = shutil.copytree(model_folder, tmp_path_factory.mktemp("calibrated") / "model")
    trace = record(load_model(folder), TEXTS, folder.parent / "trace", about={"metric": "accuracy"})
    calibrate(trace, "max_prob", max_disagreement=0.1).save(folder / "policy.json")
    return folder


@pytest.fixture(autouse=True)
def translated(monkeypatch, graphs_folder):
    """The model translated once for all tests, for that takes seconds."""

    def export_graphs(model, tokenizer, folder, on_progress):
        shutil.copytree(graphs_folder, folder, dirs_exist_ok=True)
        on_progress(Progress("exporting", 1, 1))
        return load_model(folder)

    monkeypatch.setattr(export, "export_graphs", export_graphs)


@pytest.fixture(scope="module")
def int8_graphs_folder(graphs_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    quantize(graphs_folder, folder, Texts(random_texts(tiny_tokenizer(), MOST_TEXTS)))
    return folder


@pytest.fixture
def quantized(monkeypatch, int8_graphs_folder):
    """The model quantized once for all tests without texts."""

    def quantize(source, folder, texts, on_progress):
        assert texts == Texts(random_texts(tiny_tokenizer(), MOST_TEXTS))
        shutil.copytree(int8_graphs_folder, folder, dirs_exist_ok=True)
        on_progress(Progress("measuring ranges", 1, 1))
        return load_model(folder)

    monkeypatch.setattr(export, "quantize", quantize)


@pytest.fixture
def model(calibrated, tmp_path):
    return shutil.copytree(calibrated, tmp_path / "model")


def test_in_float32_the_policy_is_carried_over(model):
    first = [prediction.probability for prediction in Engine.load(model, policy=Policy("max_prob", 0.0))(TEXTS.first)]
    certificate = certified(**asdict(load_model(model).source))
    Policy("max_prob", statistics.median(first) + 1e-4, certificate=certificate).save(model / "policy.json")
    exported = export_model(str(model), model / "onnx")
    assert exported.policy.threshold == Policy.load(model / "policy.json").threshold
    assert exported.policy.source.runtime == "onnx float32"
    assert exported.policy.source.carried_from == "torch float32"
    depths = [[prediction.depth for prediction in Engine.load(model, kind)(TEXTS.first)] for kind in ("torch", "onnx")]
    assert depths[0] == depths[1]
    assert len(set(depths[0])) > 1


def test_with_texts_the_policy_is_calibrated_again(model):
    seen = []
    exported = export_model(
        str(model),
        model / "onnx-int8",
        int8=True,
        texts=TEXTS,
        about={"metric": "accuracy", "split": "calibration"},
        on_progress=lambda progress: seen.append(progress.task),
    )
    assert list(dict.fromkeys(seen)) == ["exporting", "measuring ranges", "recording the model", "recording the export"]
    assert exported.policy.source.runtime == "onnx int8"
    assert exported.policy.strategy == "max_prob"
    assert exported.policy.certificate.guarantee == Policy.load(model / "policy.json").certificate.guarantee
    assert (exported.texts, exported.metric) == (300, "accuracy")
    assert 0 <= exported.before <= 1
    assert abs(exported.before - exported.after) < 0.1
    kept = Trace.load(model / "onnx-int8" / "calibration.safetensors")
    assert kept.about["runtime"] == "onnx int8"
    assert Engine.load(model, "onnx-int8").policy == Policy.load(model / "onnx-int8" / "policy.json")
    assert (model / "onnx-int8" / "training.json").exists()


def test_a_goal_without_a_guarantee_is_kept(model):
    trace = record(load_model(model), TEXTS, model.parent / "t", about={"metric": "accuracy"})
    calibrate(trace, speedup=1.2).save(model / "policy.json")
    exported = export_model(str(model), model / "onnx", texts=TEXTS)
    assert exported.policy.certificate.goal == Speedup(1.2)
    assert exported.policy.certificate.asked == "best"


def test_without_texts_an_int8_export_has_no_policy(model, quantized):
    exported = export_model(str(model), model / "onnx-int8", int8=True)
    assert exported.policy is None
    assert not (model / "onnx-int8" / "policy.json").exists()
    assert Engine.load(model, "onnx-int8").policy.threshold is None
    assert depths_in_plain_onnx_runtime(model / "onnx-int8") == {LAYERS}


def depths_in_plain_onnx_runtime(folder):
    """Run texts in the file of an export without an engine: the depths at which they leave."""
    session = InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(5, 20, size=(30, 6))
    inputs = {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": np.ones_like(ids)}
    return set(session.run(["depth"], inputs)[0].tolist())


def test_a_policy_that_was_never_calibrated_is_carried_over(model, quantized):
    Policy("patience", 1).save(model / "policy.json")
    assert export_model(str(model), model / "onnx-int8", int8=True).policy == Policy("patience", 1)


def test_an_export_that_fails_leaves_nothing(model, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_model(str(model), model / "onnx", on_progress=stop)
    assert not [path.name for path in model.iterdir() if "onnx" in path.name]


def test_an_older_export_is_replaced_only_when_asked(model, monkeypatch):
    export_model(str(model), model / "onnx")
    with pytest.raises(InputError, match="exists already; choose another folder or use overwrite"):
        export_model(str(model), model / "onnx")
    (model / "onnx" / "mark").touch()
    export_model(str(model), model / "onnx", overwrite=True)
    assert not (model / "onnx" / "mark").exists()
    with pytest.raises(InputError, match="is an export already; name the trained folder"):
        export_model(str(model / "onnx"), model / "again")
    (model / "other").mkdir()
    (model / "other" / "thing").touch()
    with pytest.raises(InputError, match="exists and is not an exitpoll export"):
        export_model(str(model), model / "other", overwrite=True)


def test_no_trained_model_is_replaced(model, tmp_path):
    other = shutil.copytree(model, tmp_path / "other")
    for place, message in (
        (model, "contains the model itself"),
        (tmp_path, "contains the model itself"),
        (other, "exists and is not an exitpoll export"),
        (tmp_path / "no" / "where", "there is no folder"),
    ):
        with pytest.raises(InputError, match=message):
            export_model(str(model), place, overwrite=True)
    assert (model / "model.safetensors").exists()
    assert (other / "model.safetensors").exists()


def test_an_interrupted_training_is_left_alone(model, tmp_path):
    (tmp_path / "onnx.partial").mkdir()
    (tmp_path / "onnx.partial" / "fingerprint.json").touch()
    export_model(str(model), tmp_path / "onnx")
    assert (tmp_path / "onnx.partial" / "fingerprint.json").exists()


def test_an_interrupt_between_the_renames_keeps_the_older_export(model, tmp_path, monkeypatch):
    export_model(str(model), tmp_path / "onnx")
    (tmp_path / "onnx" / "mark").touch()
    rename = Path.rename

    def interrupt(path, target):
        if path.name == "joined":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_model(str(model), tmp_path / "onnx", overwrite=True)
    assert (tmp_path / "onnx" / "mark").exists()


def test_too_few_texts_are_noted_and_not_fatal(model):
    exported = export_model(str(model), model / "onnx", texts=toy_texts(10, 1))
    assert exported.policy is None
    assert "10 texts are too few" in exported.note
    assert not (model / "onnx" / "policy.json").exists()


def test_a_calibration_is_repeated_as_it_was_asked_for(model):
    trace = record(load_model(model), TEXTS, model.parent / "t", about={"metric": "accuracy"})
    asked = Policy("votes", None, {"k": 0.25}, max_depth=2, answer="head")
    calibrate(trace, asked, speedup=1.2).save(model / "policy.json")
    policy = export_model(str(model), model / "onnx", texts=TEXTS).policy
    assert (policy.settings["k"], policy.max_depth, policy.answer) == (0.25, 2, "head")


def test_a_policy_of_another_precision_is_not_carried_over(model):
    certificate = certified(fingerprint="another", runtime="torch bfloat16")
    Policy("votes", 1.0, certificate=certificate).save(model / "policy.json")
    assert export_model(str(model), model / "onnx").policy is None


def test_folders_of_others_are_left_alone(model, tmp_path):
    (tmp_path / "onnx.exporting").mkdir()
    (tmp_path / "onnx.exporting" / "notes.txt").touch()
    with pytest.raises(InputError, match="exists and is not what an interrupted export leaves"):
        export_model(str(model), tmp_path / "onnx")
    assert (tmp_path / "onnx.exporting" / "notes.txt").exists()
    with pytest.raises(InputError, match="is not a folder that an export can be written to"):
        export_model(str(model), Path("/"))


def test_a_broken_summary_is_refused(model):
    (model / "training.json").write_text("[")
    with pytest.raises(InputError, match=r"training.json' is broken"):
        export_model(str(model), model / "onnx")


KILLED = """
import sys, time
from pathlib import Path
from exitpoll.export import export

def export_graphs(model, tokenizer, folder, on_progress):
    (folder / "embedding.onnx").touch()
    print("exporting", flush=True)
    time.sleep(60)

export.export_graphs = export_graphs
export.export_model(sys.argv[1], Path(sys.argv[2]))
"""


def test_a_killed_export_is_not_mistaken_for_a_running_one(model):
    command = [sys.executable, "-c", KILLED, str(model), str(model / "onnx")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "exporting\n"
        with pytest.raises(InputError, match=rf"onnx' is being written by export, process {process.pid} on "):
            export_model(str(model), model / "onnx")
        process.kill()
    assert {path.name for path in model.iterdir()} >= {"onnx.exporting", "onnx.lock"}
    export_model(str(model), model / "onnx")
    assert [path.name for path in model.iterdir() if "onnx" in path.name] == ["onnx"]


@pytest.mark.parametrize("left", [("replaced",), ("int8", "replaced"), ()])
def test_what_an_export_leaves_that_is_killed_at_its_end(model, left):
    export_model(str(model), model / "onnx")
    for name in left:
        shutil.copytree(model / "onnx", model / "onnx.exporting" / name)
    (model / "onnx.exporting").mkdir(exist_ok=True)
    export_model(str(model), model / "onnx", overwrite=True)
    assert [path.name for path in model.iterdir() if "onnx" in path.name] == ["onnx"]


class TestVerb:
    def test_export(self, run, model, tmp_path):
        code, out, _ = run("export", model)
        assert code == 0
        assert "the policy is exported with it, unchanged: max_prob" in out
        assert f"wrote {model / 'onnx'}, for onnx float32" in out

    def test_int8_says_what_it_costs(self, run, model, tmp_path):
        data = write_toy_folder(tmp_path / "toy", train=400, others=200)
        code, out, _ = run("export", model, "--int8", "--data", data, "--out", tmp_path / "small")
        assert code == 0
        assert "accuracy of all layers on 200 texts: " in out
        assert "guarantee: answers differ" in out
        code, out, _ = run("evaluate", tmp_path / "small", "--data", data)
        assert code == 0
        assert "the guarantee" in out
        code, out, _ = run("record", tmp_path / "small", "--data", data, "--out", tmp_path / "t")
        assert code == 0
        code, _, err = run("calibrate", model, "--trace", tmp_path / "t", "--speedup", "1.2")
        assert code == 2
        assert "was made from another runtime than" in err
        code, out, _ = run("calibrate", tmp_path / "small", "--trace", tmp_path / "t", "--speedup", "1.2")
        assert code == 0

    def test_int8_without_data(self, run, model, quantized):
        code, out, _ = run("export", model, "--int8")
        assert code == 0
        assert "note: the cost of int8 was not measured; --data measures it" in out
        assert "note: it has no policy" in out

    def test_what_an_export_shows(self):
        assert repr(Exported(Path("x"), "onnx int8", None)) == "Exported('x', onnx int8, no policy)"
        scored = Exported(Path("x"), "onnx int8", Policy("votes", 1.0), None, "accuracy", 100, 0.9, 0.88)
        assert repr(scored) == (
            "Exported('x', onnx int8, policy: votes, accuracy on 100 texts: 0.9000 before, 0.8800 exported)"
        )

    def test_a_loss_is_noted(self):
        from exitpoll.report.wording import describe_export

        lossy = Exported("x", "onnx int8", Policy("votes", 1.0), None, "accuracy", 100, 0.9, 0.88)
        assert "note: that is 2.0 points less" in describe_export(lossy)[0]

    def test_no_such_folder(self, run):
        code, _, err = run("export", "nowhere")
        assert code == 2
        assert "'nowhere' is not a folder" in err

    def test_predict_runs_an_export(self, run, model, tmp_path):
        run("export", model)
        (tmp_path / "in.jsonl").write_text(json.dumps({"text": "good film"}) + "\n")
        code, _, _ = run("predict", model / "onnx", "--data", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl")
        assert code == 0
        assert json.loads((tmp_path / "out.jsonl").read_text())["predicted"] in ("bad", "good", "so-so")
