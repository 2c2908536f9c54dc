"""adopt: a classifier's answers stay, exits are certified against it in every runtime, and a killed job goes on."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2ForSequenceClassification,
)

import exitpoll
from exitpoll import Engine, InputError, Policy
from exitpoll.adoption import steps
from exitpoll.adoption.adopt import adopt_classifier
from exitpoll.adoption.outcome import Choice
from exitpoll.adoption.settings import AdoptSettings
from exitpoll.engine.loading import default_runtime
from exitpoll.engine.manifest import Manifest
from tests.tiny import save_varied_classifier, tiny_tokenizer, toy_rows, toy_texts, write_jsonl

TORCH_ALONE = AdoptSettings(max_disagreement=0.05, runtimes=("torch",), report=False)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Train and time briefly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "TEACHING", replace(steps.TEACHING, epochs=3))
        patch.setattr(steps, "ADAPTATION", replace(steps.ADAPTATION, epochs=1))
        patch.setattr(steps, "ROUNDS", 1)
        patch.setattr(steps, "TIMED", 8)
        yield


@pytest.fixture(scope="module")
def classifier_folder(tmp_path_factory):
    return save_varied_classifier(tmp_path_factory.mktemp("varied"))


@pytest.fixture(scope="module")
def adopted(tmp_path_factory, classifier_folder):
    """A tiny classifier with exits in all runtimes, and the steps it took."""
    out, taken = tmp_path_factory.mktemp("adopted") / "fast", []
    settings = AdoptSettings(max_disagreement=0.4)  # a tiny model's exits seldom agree
    with pytest.MonkeyPatch.context() as patch:  # times of tiny models say little
        patch.setattr(steps, "fastest", lambda *_, **__: Choice("onnx", exits=True))
        result = adopt_classifier(classifier_folder, toy_texts(500), out, settings, on_step=taken.append)
    return result, taken


def logits_of(folder, texts):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        return [model(**tokenizer(text, return_tensors="pt")).logits[0].numpy() for text in texts]


def answers_of(folder, texts):
    return [int(logits.argmax()) for logits in logits_of(folder, texts)]


def test_every_runtime_is_certified_against_the_original(adopted, classifier_folder):
    result, _ = adopted
    texts = list(toy_texts(300, seed=9))
    original = answers_of(classifier_folder, texts)
    for row in result.in_runtimes:
        engine = Engine.load(result.folder, row.runtime)
        certificate = engine.policy.certificate
        assert certificate.goal.reference == "the original classifier"
        assert "from the original classifier's on at most 40 % of texts" in str(certificate.goal)
        assert certificate.texts == result.texts["certify"]  # all of them: no half is left out
        assert certificate.searched_on == result.texts["choose"]
        names = list(engine.model.label_names)
        differs = np.array([names.index(row.label) for row in engine(texts)]) != original
        assert differs.mean() <= 0.4 + 3 * np.sqrt(0.4 * 0.6 / len(texts))


def test_float32_has_one_certificate(adopted):
    """Else the best of three would be taken, each certified as one of two."""
    result, _ = adopted
    torch_policy, onnx_policy, int8_policy = (
        Engine.load(result.folder, kind).policy for kind in ("torch", "onnx", "onnx-int8")
    )
    source = torch_policy.certificate.source
    assert (source.runtime, source.carried_from) == ("torch float32", "onnx float32")
    same = replace(torch_policy.certificate, source=onnx_policy.certificate.source)
    assert replace(torch_policy, certificate=same) == onnx_policy
    for policy in (onnx_policy, int8_policy):
        assert "the better of two at 97.5 %" in policy.certificate.test


def test_texts_that_taught_the_heads_of_a_trained_folder_do_not_certify_it(adopted, tmp_path):
    result, _ = adopted
    settings = replace(TORCH_ALONE, seed=1)
    with pytest.raises(InputError, match="training texts: what is calibrated on texts that the model was trained on"):
        adopt_classifier(result.folder, toy_texts(500), tmp_path / "again", settings)


def test_full_depth_answers_as_the_original(adopted, classifier_folder):
    result, _ = adopted
    texts = list(toy_texts(50, seed=8))
    engine = Engine.load(result.folder, "torch", policy=Policy())
    names = list(engine.model.label_names)
    assert [names.index(row.label) for row in engine(texts)] == answers_of(classifier_folder, texts)


def test_the_runtime_that_was_chosen_is_the_default(adopted):
    result, taken = adopted
    assert result.runtime == "onnx"
    assert default_runtime(result.folder) == result.runtime
    certified = {row.runtime: row.met for row in result.in_runtimes}
    assert certified[result.runtime]
    engine = Engine.load(result.folder)
    named = "torch float32" if result.runtime == "torch" else Manifest.load(result.folder / result.runtime).runtime
    assert engine.runtime.name == named
    assert (result.folder / "report" / "report.html").exists()
    assert not result.folder.with_name("fast.adopting").exists()
    assert taken == [
        "teach the heads what the classifier answers",
        "export for onnx, and certify that",
        "export for onnx-int8, and certify that",
        "time every runtime against plain transformers",
        "write the report",
    ]


def test_what_is_said_at_the_end(adopted):
    result, _ = adopted
    speed, promise, loading = result.lines()[:1] + result.lines()[1:2] + result.lines()[-1:]
    assert f"faster than plain transformers, in {result.runtime}: " in speed
    assert "of it by early exit" in speed
    assert result.chosen.met
    assert "the original classifier's on at most 40 % of texts" in promise
    assert loading.startswith(f"load it: exitpoll.Engine.load('{result.folder}')")
    assert json.loads((result.folder / "adopted.json").read_text())["runtime"] == result.runtime
    card = (result.folder / "README.md").read_text()
    assert "# fast\n" in card
    assert f"made from 500 texts without labels. The engine runs it in {result.runtime} by default." in card


def test_a_job_that_was_killed_continues(classifier_folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(steps.Adoption, "_time", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adopt_classifier(classifier_folder, toy_texts(300), tmp_path / "fast", TORCH_ALONE)
    other = AdoptSettings(max_disagreement=0.1, runtimes=("torch",), report=False)
    with pytest.raises(InputError, match="interrupted adoption of other texts or settings"):
        adopt_classifier(classifier_folder, toy_texts(300), tmp_path / "fast", other)
    taken = []
    adopt_classifier(classifier_folder, toy_texts(300), tmp_path / "fast", TORCH_ALONE, on_step=taken.append)
    assert taken[0] == "time every runtime against plain transformers"
    assert not [step for step in taken[1:] if not step.startswith("run all layers")]


def test_texts_in_another_order_are_other_texts(classifier_folder, tmp_path, monkeypatch):
    """Texts are divided by their order: continued with another, texts that taught the heads would certify."""
    texts = list(toy_texts(300))
    with monkeypatch.context() as patch:
        patch.setattr(steps.Adoption, "_certify_runtimes", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adopt_classifier(classifier_folder, texts, tmp_path / "fast", TORCH_ALONE)
    with pytest.raises(InputError, match="interrupted adoption of other texts or settings"):
        adopt_classifier(classifier_folder, texts[::-1], tmp_path / "fast", TORCH_ALONE)


def test_the_seed_decides_all(classifier_folder, tmp_path):
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        torch.rand(7)  # whatever drew random numbers before
        adopt_classifier(classifier_folder, toy_texts(300), folder, TORCH_ALONE)
    first, second = (load_file(folder / "model.safetensors") for folder in folders)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


KILLED = """
import os, signal, sys
sys.path[:] = {path!r}
from dataclasses import replace
from exitpoll.adoption import steps
from exitpoll.adoption.adopt import adopt_classifier
from tests.adoption.test_adopt import TORCH_ALONE
from tests.tiny import toy_texts
steps.TEACHING = replace(steps.TEACHING, epochs=3)
steps.ROUNDS, steps.TIMED = 1, 8
seen = 0
def kill(progress):
    global seen
    seen += {stage!r} in str(progress.task)
    if seen > 1:
        os.kill(os.getpid(), signal.SIGKILL)
adopt_classifier({classifier!r}, toy_texts(300), {out!r}, TORCH_ALONE, on_progress=kill)
"""


def test_kill_9_loses_nothing_but_time(classifier_folder, tmp_path):
    """In the middle of the heads' training, and of recording."""
    folders = tmp_path / "undisturbed", tmp_path / "killed"
    adopt_classifier(classifier_folder, toy_texts(300), folders[0], TORCH_ALONE)
    for stage in ("features", "recording", "none"):
        names = {"path": sys.path, "classifier": str(classifier_folder), "out": str(folders[1]), "stage": stage}
        command = [sys.executable, "-c", KILLED.format(**names)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == (0 if stage == "none" else -signal.SIGKILL), done.stderr
        assert folders[1].exists() is (stage == "none")
    undisturbed, killed = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(undisturbed[name], killed[name]) for name in undisturbed | killed)
    tested = [Policy.load(folder / "policy.json").certificate.texts for folder in folders]
    assert tested[0] == tested[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "undisturbed"]


def test_an_old_folder_comes_back_after_a_kill_between_two_renames(classifier_folder, adopted, tmp_path):
    old = tmp_path / "fast.adopting" / "replaced"
    shutil.copytree(adopted[0].folder, old, ignore=shutil.ignore_patterns("onnx*"))
    with pytest.raises(InputError, match="exists already"):
        adopt_classifier(classifier_folder, toy_texts(300), tmp_path / "fast", TORCH_ALONE)
    assert (tmp_path / "fast" / "adopted.json").exists()


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_all_layers_run_where_exits_cost_more_than_they_save(runtime, classifier_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "fastest", lambda *_, **__: Choice(runtime, exits=False))
    settings = AdoptSettings(max_disagreement=0.4, runtimes=tuple({"torch", runtime}), report=False)
    result = adopt_classifier(classifier_folder, toy_texts(300), tmp_path / "fast", settings)
    assert (result.chosen.runtime, result.chosen.exits, result.chosen.met) == (runtime, False, True)
    assert "no text exits early" in result.lines()[1]
    assert "all layers" in result.lines()[0]
    engine = Engine.load(tmp_path / "fast")
    assert engine.policy.threshold is None
    assert engine.policy.certificate.met
    assert engine.policy.certificate.bound < 0.4
    assert "the better of two" not in engine.policy.certificate.test  # there is no int8 here
    texts = list(toy_texts(40, seed=5))
    assert {row.depth for row in engine(texts)} == {engine.runtime.exit_layers[-1]}
    assert np.allclose([row.logits for row in engine(texts)], logits_of(classifier_folder, texts), atol=1e-4)


def test_exits_that_agree_are_certified_and_used(adopted):
    result, _ = adopted
    row = next(row for row in result.in_runtimes if row.runtime == "torch")
    assert row.met
    assert row.speedup > 1.2


def test_several_labels(tmp_path):
    folder = tmp_path / "tags"
    save_varied_classifier(folder)
    config = json.loads((folder / "config.json").read_text()) | {"problem_type": "multi_label_classification"}
    (folder / "config.json").write_text(json.dumps(config))
    engine = exitpoll.adopt(folder, toy_texts(300), tmp_path / "fast", max_disagreement=0.1, runtimes=("torch",))
    assert engine.policy.certificate.met
    assert isinstance(engine(["good film"])[0].label, tuple)


def test_a_family_that_is_not_supported(tmp_path):
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=64, pad_token_id=0)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "gpt")
    tiny_tokenizer().save_pretrained(tmp_path / "gpt")
    with pytest.raises(InputError, match="gpt2"):
        adopt_classifier(tmp_path / "gpt", toy_texts(300), tmp_path / "fast", TORCH_ALONE)


def test_a_cross_encoder_of_sentence_transformers(tmp_path):
    save_varied_classifier(tmp_path / "base", classes=1)
    cross_encoder = CrossEncoder(str(tmp_path / "base"), num_labels=1, device="cpu")
    cross_encoder.save_pretrained(str(tmp_path / "reranker"))
    pairs = [(first, second) for first, second, _ in toy_rows(300, pairs=True)]
    out = tmp_path / "fast"
    engine = exitpoll.adopt(tmp_path / "reranker", pairs, out, max_disagreement=0.05, runtimes=("torch",))
    goal = engine.policy.certificate.goal
    assert goal.tolerance > 0
    assert f"values are more than {goal.tolerance:.3g} from the original classifier's on at most 5 %" in str(goal)
    logits = torch.logit(torch.tensor(cross_encoder.predict(pairs)))  # predict applies a sigmoid
    distances = np.abs(np.array([row.label for row in engine(pairs)]) - logits.numpy())
    assert (distances > goal.tolerance).mean() <= 0.1
    full = Engine.load(out, policy=Policy(problem_type="regression"))
    np.testing.assert_allclose([row.label for row in full(pairs)], logits, atol=1e-4)


@pytest.mark.parametrize("pays", [True, False])
def test_an_encoder_that_was_trained_too_is_kept_where_that_pays(pays, classifier_folder, tmp_path, monkeypatch):
    speedups = {"model": 1.5, "adapted": 2.0 if pays else 1.4}  # by the texts that choose
    monkeypatch.setattr(steps.Adoption, "_speedup_on_choose", lambda self, folder: speedups[folder.name])
    settings = AdoptSettings(max_disagreement=0.2, adapt=True, runtimes=("torch",), report=False)
    result = adopt_classifier(classifier_folder, toy_texts(300), tmp_path / "fast", settings)
    certificate = Policy.load(result.folder / "policy.json").certificate
    assert certificate.goal.reference == "the original classifier"
    assert (result.adapting.frozen, result.adapting.adapted) == (1.5, speedups["adapted"])
    texts = list(toy_texts(40))
    full = Engine.load(result.folder, policy=Policy())(texts)
    same = np.allclose([row.logits for row in full], logits_of(classifier_folder, texts), atol=1e-5)
    assert same is not pays


def test_what_adapting_gains_is_measured_on_the_texts_that_choose(classifier_folder, tmp_path):
    settings = AdoptSettings(max_disagreement=0.2, adapt=True, runtimes=("torch",), report=False)
    result = adopt_classifier(classifier_folder, toy_texts(300), tmp_path / "fast", settings)
    assert min(result.adapting.frozen, result.adapting.adapted) >= 1
    assert 0 <= result.adapting.changed < 0.5
    assert result.adapted is (result.adapting.adapted > result.adapting.frozen)


def test_a_model_folder_of_exitpoll_keeps_its_heads(adopted, tmp_path):
    source = adopted[0].folder
    texts = list(toy_texts(300, seed=7))
    engine = exitpoll.adopt(source, texts, tmp_path / "fast", max_disagreement=0.4, runtimes=["torch"], seed=7)
    assert engine.runtime.fingerprint == Engine.load(source, "torch").runtime.fingerprint
    assert not list(tmp_path.glob("fast/onnx*"))


def test_texts_that_a_model_folder_answers_all_alike(model_folder, tmp_path):
    with pytest.raises(InputError, match="the classifier answers 'good' to all of"):
        adopt_classifier(model_folder, toy_texts(300), tmp_path / "fast", TORCH_ALONE)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["the film"] * 300, "the classifier answers 'LABEL_.' to all of 150 texts"),
        (["good film"] * 20, "20 texts are too few to guarantee that answers differ from the original classifier's"),
        ("good film", "give a list of texts, not one text"),
    ],
)
def test_refusals(texts, message, classifier_folder, tmp_path):
    with pytest.raises(InputError, match=message):
        adopt_classifier(classifier_folder, texts, tmp_path / "fast", TORCH_ALONE)
    with pytest.raises(InputError, match="neither a folder nor on the hub"):
        adopt_classifier(tmp_path / "misspelled", toy_texts(300), tmp_path / "fast", TORCH_ALONE)
    assert not (tmp_path / "fast.adopting").exists()  # another try is not refused


def test_the_verb(run, classifier_folder, tmp_path):
    path = write_jsonl(tmp_path / "traffic.jsonl", [{"text": text, "label": "x"} for text, _ in toy_rows(300)])
    words = ("adopt", classifier_folder, "--texts", path, "--out", tmp_path / "fast", "--no-report")
    code, out, err = run(*words, "--runtimes", "torch", "--max-disagreement", "0.05")
    assert code == 0, err
    assert "load it: exitpoll.Engine.load(" in out
    code, out, err = run(*words, "--runtimes", "torch", "--json")
    assert code == 2
    assert "exists already" in err


def test_a_broken_default(adopted, tmp_path):
    folder = shutil.copytree(adopted[0].folder, tmp_path / "broken", ignore=shutil.ignore_patterns("onnx*"))
    (folder / "adopted.json").write_text('{"runtime": "gpu"}')
    with pytest.raises(InputError, match="it names no runtime"):
        Engine.load(folder)


def test_an_unknown_runtime_is_refused():
    with pytest.raises(InputError, match="runtime 'onyx' is unknown; choose among: torch, onnx, onnx-int8"):
        AdoptSettings(runtimes=["onyx"])
