"""exitpoll doctor: one page, and an exit code by health."""

from __future__ import annotations

import json
import subprocess
import sys


def test_the_exit_code_tells_the_health(run, model):
    code, out, _ = run("doctor", model)
    assert code == 1  # it has no policy yet
    assert f"{model} is usable, with warnings" in out
    assert any(line.split()[:2] == ["policy", "warning"] for line in out.splitlines())
    (model / "tokenizer.json").unlink()
    code, out, _ = run("doctor", model, "--no-weights")
    assert code == 2
    assert f"{model} is broken" in out


def test_one_page(run, model):
    _, out, _ = run("doctor", model)
    assert len(out.splitlines()) < 25


def test_json(run, model):
    code, out, _ = run("-q", "doctor", model, "--json", "--no-weights")
    assert code == 1
    result = json.loads(out)
    assert result["health"] == "usable, with warnings"
    assert {"topic", "level", "text"} == set(result["findings"][0])


def test_other_folders_are_refused(refused, tmp_path):
    refused("is not an exitpoll model folder", "doctor", tmp_path)
    refused("is not an exitpoll model folder", "doctor", tmp_path / "none")


def test_control_characters_of_a_stranger_are_shown(run, model):
    training = json.loads((model / "training.json").read_text())
    (model / "training.json").write_text(json.dumps(training | {"data": "\x1b[31mred"}))
    _, out, _ = run("doctor", model, "--no-weights")
    assert r"\x1b[31mred" in out
    assert "\x1b" not in out


def test_without_the_weights_torch_is_not_imported(model):
    code = "import sys; from exitpoll.cli.main import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    words = [sys.executable, "-c", code, "doctor", str(model), "--no-weights"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False"
