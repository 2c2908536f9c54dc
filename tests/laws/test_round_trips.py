"""Law 7: saving and loading changes nothing, and loading neither unpickles nor runs remote code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSequenceClassification, pipeline

from exitpoll import EarlyExitModel, Engine, ExitConfig, InputError
from exitpoll.files import read_json, write_json
from exitpoll.models.tokenizer import load_tokenizer
from tests.tiny import CONFIGS, save_tiny, tiny_classifier, tiny_encoder, tiny_tokenizer, tokens


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("options", [{}, {"exits": [2]}, {"head": "linear", "shared_head": True, "pooling": "first"}])
@torch.no_grad()
def test_save_and_load(name, options, tmp_path):
    tiny_encoder(name).save_pretrained(tmp_path / "encoder")
    model = EarlyExitModel.from_encoder(tmp_path / "encoder", labels=["a", "b", "c"], **options).eval()
    model.save_pretrained(tmp_path / "model")
    loaded = EarlyExitModel.from_pretrained(tmp_path / "model").eval()
    batch = tokens(model.config.encoder.pad_token_id or 0)
    assert torch.equal(loaded(**batch).exit_logits, model(**batch).exit_logits)
    assert loaded.config.to_diff_dict() | {"_name_or_path": ""} == model.config.to_diff_dict() | {"_name_or_path": ""}


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_save_and_load_with_a_native_head(name, tmp_path):
    tiny_classifier(name).save_pretrained(tmp_path / "classifier")
    model = EarlyExitModel.from_classifier(tmp_path / "classifier").eval()
    model.save_pretrained(tmp_path / "model")
    loaded = EarlyExitModel.from_pretrained(tmp_path / "model").eval()
    batch = tokens(model.config.encoder.pad_token_id or 0)
    assert torch.equal(loaded(**batch).exit_logits, model(**batch).exit_logits)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_attention_is_chosen_on_loading(attention, encoder_folder, tmp_path):
    EarlyExitModel.from_encoder(encoder_folder, labels=2).save_pretrained(tmp_path)
    loaded = EarlyExitModel.from_pretrained(tmp_path, attn_implementation=attention)
    assert loaded.encoder.config._attn_implementation == attention
    assert torch.isfinite(loaded(**tokens(0)).exit_logits).all()


@pytest.fixture
def model_folder(encoder_folder, tmp_path):
    EarlyExitModel.from_encoder(encoder_folder, labels=["bad", "good"]).save_pretrained(tmp_path / "m")
    tiny_tokenizer().save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def test_auto_classes_load_exitpoll_folders(model_folder):
    assert isinstance(AutoConfig.from_pretrained(model_folder), ExitConfig)
    assert isinstance(AutoModelForSequenceClassification.from_pretrained(model_folder), EarlyExitModel)


def test_pipeline(model_folder, caplog):
    classify = pipeline("text-classification", str(model_folder))
    answers = classify(["the film was good", "a very bad plot"])
    model = EarlyExitModel.from_pretrained(model_folder)
    with torch.no_grad():
        probabilities = model(**tiny_tokenizer()("a very bad plot", return_tensors="pt")).logits.softmax(-1)[0]
    assert answers[1]["label"] == model.config.id2label[probabilities.argmax().item()]
    assert answers[1]["score"] == pytest.approx(probabilities.max().item(), abs=1e-5)
    assert "not supported" not in caplog.text


@pytest.mark.parametrize(
    "imports",
    [
        "import exitpoll; from transformers import pipeline",
        "from transformers import pipeline; import exitpoll",
        "import exitpoll, torch; from transformers import AutoTokenizer, pipeline",
    ],
)
def test_pipeline_whatever_is_imported_first(model_folder, imports):
    code = f"{imports}; print(pipeline('text-classification', {str(model_folder)!r})('good')[0]['label'])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() in ("bad", "good")


def test_nothing_in_the_folder_is_a_pickle(model_folder):
    assert {path.suffix for path in model_folder.iterdir()} <= {".json", ".safetensors"}


@pytest.mark.parametrize(
    "load", [EarlyExitModel.from_pretrained, lambda folder: pipeline("text-classification", folder)]
)
def test_pickled_weights_are_refused(model_folder, load):
    weights = load_file(model_folder / "model.safetensors")
    torch.save(weights, model_folder / "pytorch_model.bin")
    (model_folder / "model.safetensors").unlink()
    with pytest.raises(Exception, match="safetensors"):
        load(str(model_folder))


FORBIDDEN = "raise SystemExit('this must not run')"


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_code_beside_an_encoder_is_never_run(tmp_path, file):
    folder = save_tiny("bert", tmp_path)
    tiny_tokenizer().save_pretrained(folder)
    (folder / "evil.py").write_text(FORBIDDEN)
    ours = {"AutoConfig": "evil.C", "AutoModel": "evil.M", "AutoTokenizer": ["evil.T", None]}
    write_json(folder / file, read_json(folder / file) | {"auto_map": ours})
    assert EarlyExitModel.from_encoder(folder, labels=2).config.exit_layers == [1, 2, 3]
    assert load_tokenizer(folder)("good")["input_ids"]


def test_an_encoder_of_custom_code_is_refused(tmp_path):
    folder = save_tiny("bert", tmp_path)
    (folder / "evil.py").write_text(FORBIDDEN)
    ours = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.C", "AutoModel": "evil.M"}}
    write_json(folder / "config.json", read_json(folder / "config.json") | ours)
    with pytest.raises(InputError):
        EarlyExitModel.from_encoder(folder, labels=2)


def test_code_beside_a_trained_model_is_never_run(model_folder):
    (model_folder / "evil.py").write_text(FORBIDDEN)
    config = read_json(model_folder / "config.json")
    config["auto_map"] = config["encoder"]["auto_map"] = {"AutoConfig": "evil.C", "AutoModel": "evil.M"}
    write_json(model_folder / "config.json", config)
    assert len(Engine.load(model_folder)(["good"])) == 1


def test_pickled_weights_of_an_encoder_are_refused(tmp_path):
    encoder = tiny_encoder("bert")
    encoder.config.save_pretrained(tmp_path)
    torch.save(encoder.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        EarlyExitModel.from_encoder(tmp_path, labels=2)


def test_push_to_hub_uploads_what_save_pretrained_writes(model_folder, monkeypatch):
    """The upload is replaced by a list of the files to upload."""
    uploaded = {}

    def upload(self, working_dir, repo_id, *_, **__):
        uploaded[repo_id] = {path.name for path in Path(working_dir).iterdir()}

    hub = SimpleNamespace(create_repo=lambda repo_id, **_: SimpleNamespace(repo_id=repo_id))
    monkeypatch.setattr("transformers.utils.hub.hf_api", lambda: hub)
    monkeypatch.setattr(EarlyExitModel, "_upload_modified_files", upload)
    EarlyExitModel.from_pretrained(model_folder).push_to_hub("someone/some-model")
    assert uploaded["someone/some-model"] >= {"config.json", "model.safetensors"}
