"""What is refused before data and weights are read."""

from __future__ import annotations

import pytest

from exitpoll import InputError, TrainingSettings
from exitpoll.training.train import preflight


def test_settings_are_resolved(tmp_path):
    assert preflight(None, tmp_path / "m", native_head=False, overwrite=False) == TrainingSettings().resolved()
    settings = preflight(TrainingSettings(method="pabee"), tmp_path / "m", native_head=True, overwrite=False)
    assert (settings.objective, settings.schedule) == ("relevancy", "heads")
    assert not list(tmp_path.iterdir())


def test_wrong_settings_and_folders_in_use_are_refused(tmp_path):
    with pytest.raises(InputError, match="epochs 0 must be at least 1"):
        preflight(TrainingSettings(epochs=0), tmp_path / "m", native_head=False, overwrite=False)
    (tmp_path / "m").touch()
    with pytest.raises(InputError, match="exists and is not an exitpoll model folder"):
        preflight(None, tmp_path / "m", native_head=False, overwrite=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "taken"), "exists and is not an exitpoll model folder"),
        (("--out", "m", "--epochs", "0"), "epochs 0 must be at least 1"),
        (("--out", "m", "--schedule", "heads"), "use --classifier"),
    ],
)
def test_the_command_line_refuses_them_before_it_reads_anything(run, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    code, _, err = run("train", "--encoder", "no/such-encoder", "--data", tmp_path / "none.csv", *options)
    assert code == 2
    assert message in err
