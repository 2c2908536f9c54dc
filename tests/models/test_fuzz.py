"""Files of a model folder that are broken in any way are refused in one line, whatever reads them."""

from __future__ import annotations

import shutil

import pytest
from hypothesis import HealthCheck, given, settings

from exitpoll import EarlyExitModel, InputError, load_model
from exitpoll.files import read_json
from exitpoll.models.card import model_card
from exitpoll.models.folder import read_training
from exitpoll.models.pretrained import read_any_config
from tests.mutations import mutations

MUTATIONS = settings(
    max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model_folder):
    return shutil.copytree(model_folder, tmp_path_factory.mktemp("fuzz") / "model")


def refused_or_read(read, *arguments):
    """Return whether a reader accepts; anything but an InputError fails the test."""
    try:
        read(*arguments)
    except InputError:
        return False
    return True


@pytest.mark.slow
def test_config(folder, model_folder):
    path, seen = folder / "config.json", {True: 0, False: 0}

    @MUTATIONS
    @given(text=mutations(read_json(model_folder / "config.json")))
    def check(text):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        accepted = refused_or_read(read_any_config, folder)
        seen[accepted] += 1
        if accepted and seen[accepted] % 10 == 0:  # building a model takes longer than reading its configuration
            refused_or_read(EarlyExitModel.from_pretrained, folder)
        refused_or_read(model_card, folder, "name")

    check()
    assert min(seen.values()) > 100


@pytest.mark.slow
def test_training_summary(folder, model_folder):
    shutil.copy(model_folder / "config.json", folder)
    path, seen = folder / "training.json", {True: 0, False: 0}

    @MUTATIONS
    @given(text=mutations(read_json(model_folder / "training.json")))
    def check(text):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        seen[refused_or_read(read_training, folder)] += 1
        model_card(folder, "name")

    check()
    assert min(seen.values()) > 100
    path.write_text('{"settings": 3}')
    with pytest.raises(InputError, match="is broken: settings is 3"):
        load_model(folder)
