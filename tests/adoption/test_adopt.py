"""adopt: a classifier's answers stay, exits are certified against it in every runtime, and a killed job goes on."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import exitpoll
from exitpoll import Engine, InputError, Policy
from exitpoll.adoption import steps
from exitpoll.adoption.adopt import adopt_classifier
from exitpoll.adoption.settings import AdoptSettings
from exitpoll.engine.loading import default_runtime
from exitpoll.engine.manifest import Manifest
from tests.tiny import save_varied_classifier, toy_rows, toy_texts, write_jsonl

TORCH_ALONE = AdoptSettings(max_disagreement=0.05, runtimes=("torch",), report=False)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Train and time briefly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "EPOCHS", 3)
        patch.setattr(steps, "ADAPT_EPOCHS", 1)
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
    settings = AdoptSettings(max_disagreement=0.05)
    result = adopt_classifier(classifier_folder, toy_texts(500), out, settings, on_step=taken.append)
    return result, taken


def answers_of(folder, texts):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [int(model(**tokenizer(text, return_tensors="pt")).logits.argmax()) for text in texts]


def test_every_runtime_is_certified_against_the_original(adopted, classifier_folder):
    result, _ = adopted
    texts = list(toy_texts(300, seed=9))
    original = answers_of(classifier_folder, texts)
    for row in result.in_runtimes:
        engine = Engine.load(result.folder, row.runtime)
        certificate = engine.policy.certificate
        assert certificate.goal.reference == "the original classifier"
        assert "from the original classifier's on at most 5 % of texts" in str(certificate.goal)
        assert certificate.texts == result.texts["certify"]  # all of them: no half is left out
        assert certificate.searched_on == result.texts["choose"]
        names = list(engine.model.label_names)
        differs = np.array([names.index(row.label) for row in engine(texts)]) != original
        assert differs.mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / len(texts))


def test_full_depth_answers_as_the_original(adopted, classifier_folder):
    result, _ = adopted
    texts = list(toy_texts(50, seed=8))
    engine = Engine.load(result.folder, "torch", policy=Policy())
    names = list(engine.model.label_names)
    assert [names.index(row.label) for row in engine(texts)] == answers_of(classifier_folder, texts)


def test_the_fastest_that_is_certified_is_the_default(adopted):
    result, taken = adopted
    assert default_runtime(result.folder) == result.runtime
    certified = {row.runtime: row.met for row in result.in_runtimes}
    assert certified[result.runtime] or not any(certified.values())
    engine = Engine.load(result.folder)
    named = "torch float32" if result.runtime == "torch" else Manifest.load(result.folder / result.runtime).runtime
    assert engine.runtime.name == named
    assert (result.folder / "report" / "report.html").exists()
    assert not result.folder.with_name("fast.adopting").exists()
    assert taken == [
        "teach the heads what the classifier answers",
        "choose and certify a policy",
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
    assert "the original classifier's on at most 5 % of texts" in promise or not result.chosen.met
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
    assert taken == ["time every runtime against plain transformers"]


def test_a_value(tmp_path):
    folder = tmp_path / "reranker"
    save_varied_classifier(folder, classes=1)  # without a problem type, as a CrossEncoder of sentence-transformers
    pairs = [(first, second) for first, second, _ in toy_rows(300, pairs=True)]
    engine = exitpoll.adopt(folder, pairs, tmp_path / "fast", max_disagreement=0.05, runtimes=("torch",))
    goal = engine.policy.certificate.goal
    assert goal.tolerance > 0
    assert f"values are more than {goal.tolerance:.3g} from the original classifier's on at most 5 %" in str(goal)
    full = Engine.load(tmp_path / "fast", policy=Policy(problem_type="regression"))
    distances = np.array([abs(a.label - b.label) for a, b in zip(engine(pairs), full(pairs), strict=True)])
    assert (distances > goal.tolerance).mean() <= 0.1


def test_the_encoder_may_be_trained_too(classifier_folder, tmp_path):
    settings = AdoptSettings(max_disagreement=0.2, adapt=True, runtimes=("torch",), report=False)
    result = adopt_classifier(classifier_folder, toy_texts(300), tmp_path / "fast", settings)
    assert result.adapted
    certificate = Policy.load(result.folder / "policy.json").certificate
    assert certificate.goal.reference == "the original classifier"


def test_a_model_folder_of_exitpoll_keeps_its_heads(model_folder, tmp_path):
    source = shutil.copytree(model_folder, tmp_path / "source")
    engine = exitpoll.adopt(source, list(toy_texts(300)), tmp_path / "fast", max_disagreement=0.1, runtimes=["torch"])
    assert engine.runtime.fingerprint == Engine.load(source).runtime.fingerprint


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
