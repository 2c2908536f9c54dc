from __future__ import annotations

import os

# Tests never reach for the network, whatever the machine has.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

import hypothesis
import pytest
import torch

from tests.tiny import save_tiny, tiny_tokenizer

# A busy machine must not fail a law, and a law must fail every time or never.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("steady")
torch.set_num_threads(1)  # tiny tensors: threads only get in each other's way


@pytest.fixture(autouse=True)
def denormals():
    """Training flushes denormal numbers to zero in the whole process; the next test must not notice."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory):
    return save_tiny("bert", tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory):
    return save_tiny("bert", tmp_path_factory.mktemp("classifier"), classifier=True)
