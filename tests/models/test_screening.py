"""A stranger's model folder: what is refused in one line before transformers reads the file, and what is never run."""

from __future__ import annotations

import contextlib
import pickle
import shutil

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from exitpoll import EarlyExitModel, InputError, load_model
from exitpoll.files import read_json, write_json
from exitpoll.models import pretrained
from exitpoll.models.tokenizer import load_tokenizer
from tests.tiny import save_tiny


@pytest.fixture
def encoder(tmp_path):
    return save_tiny("bert", tmp_path / "encoder")


@pytest.fixture
def stranger(tmp_path, model_folder):
    return shutil.copytree(model_folder, tmp_path / "stranger")


@pytest.fixture
def unread(monkeypatch):
    """Fail if transformers is asked to read a configuration, weights or a tokenizer."""

    def fail(*arguments, **named):
        raise AssertionError("transformers was asked")

    for owner in (AutoConfig, AutoTokenizer, AutoModelForSequenceClassification):
        monkeypatch.setattr(owner, "from_pretrained", fail)
    monkeypatch.setattr(pretrained.AutoConfig, "from_pretrained", fail)


def change(folder, file="config.json", **fields):
    write_json(folder / file, (read_json(folder / file) or {}) | fields)


def nest(folder, **fields):
    """Change fields of the encoder inside the configuration of a trained model."""
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", config | {"encoder": config["encoder"] | fields})


LOADERS = {
    "from_encoder": lambda folder: EarlyExitModel.from_encoder(folder, labels=2),
    "from_classifier": EarlyExitModel.from_classifier,
    "tokenizer": load_tokenizer,
}
KERNEL = "kernels-community/flash-attn"


class TestConfig:
    @pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
    @pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
    @pytest.mark.parametrize("value", [KERNEL, "flash_attention_2", {"": KERNEL}, [KERNEL], 3])
    def test_attention_from_elsewhere(self, encoder, unread, load, field, value):
        change(encoder, **{field: value})
        with pytest.raises(InputError, match=f"has {field} .*; known are: eager, sdpa, flex_attention"):
            load(encoder)

    @pytest.mark.parametrize("value", [None, "eager", "sdpa"])
    def test_attention_that_is_installed(self, encoder, value):
        change(encoder, attn_implementation=value)
        EarlyExitModel.from_encoder(encoder, labels=2)

    def test_attention_of_the_encoder_inside_a_trained_model(self, stranger, unread):
        nest(stranger, _attn_implementation=KERNEL)
        with pytest.raises(InputError, match="_attn_implementation 'kernels-community"):
            EarlyExitModel.from_pretrained(stranger)
        with pytest.raises(InputError, match="_attn_implementation 'kernels-community"):
            load_model(stranger)

    def test_the_auto_classes_of_transformers_are_no_way_around(self, stranger):
        nest(stranger, attn_implementation=KERNEL)
        with pytest.raises(InputError, match="attn_implementation 'kernels-community"):
            AutoModelForSequenceClassification.from_pretrained(stranger)

    @pytest.mark.parametrize(
        "fields",
        [
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
            {"configuration_files": ["config.4.0.0.json"]},
            {"transformers_weights": "adapter_model.bin"},
        ],
    )
    def test_fields_that_lead_to_other_files_or_code(self, encoder, unread, fields):
        change(encoder, **fields)
        [name] = fields
        with pytest.raises(InputError, match=f"has {name}: .* not supported"):
            EarlyExitModel.from_encoder(encoder, labels=2)

    @pytest.mark.parametrize("fields", [{"num_labels": 10**12}, {"num_hidden_layers": 10**9}, {"vocab_size": 1e300}])
    def test_sizes_that_would_exhaust_the_memory(self, encoder, unread, fields):
        change(encoder, **fields)
        with pytest.raises(InputError, match="it must be at most"):
            EarlyExitModel.from_encoder(encoder, labels=2)

    @pytest.mark.parametrize("model_type", ["bert", "stranger"])
    def test_code_in_the_folder_never_runs(self, encoder, tmp_path, model_type):
        classes = {name: f"evil.{name}" for name in ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")}
        change(encoder, model_type=model_type, auto_map=classes)
        change(encoder, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]})
        (encoder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        for load in LOADERS.values():
            with contextlib.suppress(InputError):
                load(encoder)
        assert not (tmp_path / "ran").exists()


class TestWeights:
    @pytest.mark.parametrize(
        "shard",
        [
            *("../x.safetensors", "/x.safetensors", "a/x.safetensors", "..\\x.safetensors", "C:x.safetensors"),
            *("evil.bin", "..", "", None, 3, ["x.safetensors"]),
        ],
    )
    def test_an_index_names_safetensors_beside_it(self, encoder, tmp_path, shard):
        (encoder / "model.safetensors").rename(tmp_path / "x.safetensors")
        names = EarlyExitModel.from_encoder(save_tiny("bert", tmp_path / "whole"), labels=2).encoder.state_dict()
        write_json(
            encoder / "model.safetensors.index.json", {"metadata": {}, "weight_map": dict.fromkeys(names, shard)}
        )
        with pytest.raises(InputError, match=r"weights must be \.safetensors files beside it"):
            EarlyExitModel.from_encoder(encoder, labels=2)

    def test_shards_that_are_beside_the_index(self, encoder):
        (encoder / "model.safetensors").rename(encoder / "model-00001-of-00001.safetensors")
        with safe_open(encoder / "model-00001-of-00001.safetensors", "pt") as file:
            weights = dict.fromkeys(file.keys(), "model-00001-of-00001.safetensors")
        write_json(encoder / "model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": weights})
        assert EarlyExitModel.from_encoder(encoder, labels=2).config.exit_layers == [1, 2, 3]

    def test_pickled_weights_alone(self, encoder):
        (encoder / "model.safetensors").unlink()
        torch.save({}, encoder / "pytorch_model.bin")
        with pytest.raises(InputError, match="cannot be loaded"):
            EarlyExitModel.from_encoder(encoder, labels=2)

    def test_an_adapter_of_another_model(self, encoder):
        write_json(encoder / "adapter_config.json", {"base_model_name_or_path": "someone/else"})
        with pytest.raises(InputError, match="merge the adapter into its model first"):
            EarlyExitModel.from_encoder(encoder, labels=2)

    def test_a_trained_model_is_held_to_the_same(self, stranger):
        (stranger / "model.safetensors").unlink()
        write_json(stranger / "model.safetensors.index.json", {"metadata": {}, "weight_map": {"a": "evil.bin"}})
        with pytest.raises(InputError, match=r"names 'evil\.bin'"):
            load_model(stranger)


def test_a_tokenizer_that_names_files_elsewhere(encoder):
    change(encoder, "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.5.0.json"])
    with pytest.raises(InputError, match="which is not a file there"):
        load_tokenizer(encoder)


def test_nothing_is_unpickled(stranger, encoder, classifier_folder, monkeypatch):
    """Not even where a folder brings pickles under every name that transformers knows."""

    def canary(*arguments, **named):
        raise AssertionError("something was unpickled")

    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "tokenizer.pkl", "vocab.pkl"):
        for folder in (stranger, encoder):
            (folder / name).write_bytes(pickle.dumps({"a": 1}))
    for module, names in ((pickle, ("load", "loads", "Unpickler")), (torch, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, canary)
    EarlyExitModel.from_pretrained(stranger)
    EarlyExitModel.from_encoder(encoder, labels=2)
    EarlyExitModel.from_classifier(classifier_folder)
    load_tokenizer(stranger)
    assert load_model(stranger).label_names == ["bad", "good", "so-so"]


def test_links_are_followed_as_the_cache_of_the_hub_is_made_of_them(encoder, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in encoder.iterdir():
        (linked / path.name).symlink_to(path)
    assert EarlyExitModel.from_encoder(linked, labels=2).config.exit_layers == [1, 2, 3]


def test_one_line(encoder):
    change(encoder, attn_implementation="a\nb/c" + "x" * 500)
    with pytest.raises(InputError) as caught:
        EarlyExitModel.from_encoder(encoder, labels=2)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
