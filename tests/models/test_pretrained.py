"""The embedded encoder is files of a package that is never imported, and is checked before it is used."""

from __future__ import annotations

import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from exitpoll import EarlyExitModel, InputError
from exitpoll.data import demo
from exitpoll.models import pretrained
from exitpoll.models.pretrained import encoder_folder
from exitpoll.models.tokenizer import load_tokenizer
from tests.tiny import save_tiny, tiny_tokenizer


@pytest.fixture(autouse=True)
def no_cached_hashes():
    pretrained._sha256.cache_clear()


@pytest.fixture
def package(inert_package):
    return inert_package(pretrained.ENCODER)


def test_the_encoder_is_loaded_if_its_weights_are_the_original_ones(package, monkeypatch):
    folder = save_tiny("bert", package / "model")
    with pytest.raises(InputError, match="is not the file that exitpoll expects"):
        encoder_folder("embedded")
    pretrained._sha256.cache_clear()
    weights = (folder / pretrained.WEIGHTS).read_bytes()
    monkeypatch.setattr(pretrained, "SHA256", hashlib.sha256(weights).hexdigest())
    assert EarlyExitModel.from_encoder("embedded", labels=2).config.exit_layers == [1, 2, 3]
    assert load_tokenizer(encoder_folder("embedded")).pad_token == "[PAD]"
    pretrained._sha256.cache_clear()
    (folder / pretrained.WEIGHTS).unlink()
    with pytest.raises(InputError, match="is missing"):
        encoder_folder("embedded")


def test_a_folder_of_that_name_is_not_the_embedded_encoder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_tiny("bert", tmp_path / "embedded")
    assert encoder_folder("./embedded") == "./embedded"
    assert encoder_folder(Path("embedded")) == Path("embedded")
    assert len(load_tokenizer("embedded")) == len(tiny_tokenizer())  # of a model folder that has the name


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"the embedded encoder needs more packages: .*exitpoll\[demo\]"):
        encoder_folder("embedded")


@pytest.mark.skipif(find_spec(pretrained.ENCODER) is None, reason="the extra demo is not installed")
def test_the_real_package():
    before = set(sys.modules)  # other tests import sentence-transformers
    assert EarlyExitModel.from_encoder("embedded", labels=2).config.exit_layers == [1, 2, 3, 4, 5, 6]
    assert "sentence_transformers" not in sys.modules.keys() - before
    assert pretrained.ENCODER not in sys.modules
