"""Options of all verbs: -q, -V, --json; what was mistyped, completion, `python -m exitpoll`, help in any width."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from exitpoll import __version__
from exitpoll.cli.app import build_app, summary_of
from exitpoll.cli.groups import VERBS

COMMAND = [sys.executable, "-m", "exitpoll"]


def test_python_m_exitpoll():
    done = subprocess.run([*COMMAND, "-V"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{__version__}\n", "")


@pytest.mark.parametrize("verb", VERBS)
def test_summaries_are_read_without_importing_the_verb(verb):
    assert summary_of(verb) == build_app(with_summaries=False)[verb].help.splitlines()[0]


def test_help_imports_no_verb():
    code = (
        "import sys; sys.argv = ['exitpoll', '--help']; from exitpoll.cli.main import main; main();"
        "print([name for name in sys.modules if name.startswith(('exitpoll.cli.verbs.', 'numpy', 'rich.markdown'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["calibrat"], 'Unknown command "calibrat". Did you mean "calibrate"? The commands are: quickstart, adopt, '),
        (["-q", "guess"], 'Unknown command "guess". The commands are: quickstart, '),
        (["sweep", "t", "--output", "x"], "Unknown option: --output. Did you mean --out?"),
        (["sweep", "t", "--metric", "accurcy"], 'Did you mean "accuracy"?'),
        (["train", "--method", "pabe", "--data", "d", "--out", "o"], 'Did you mean "pabee"?'),
    ],
)
def test_what_was_meant_is_suggested(refused, words, message):
    refused(message, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--data", "d", "o"], "exitpoll: train needs --out; see: exitpoll train --help"),
        (["train", "--data", "d", "--out"], "parameter --out requires an argument"),
        (["record", "--data", "d", "--out", "t"], "exitpoll: record needs MODEL; see: exitpoll record --help"),
    ],
)
def test_what_is_missing_is_named(refused, words, message):
    refused(message, *words)


@pytest.mark.parametrize("place", ["first", "last"])
def test_quiet_leaves_results_alone(run, recorded, tmp_path, place):
    words = ["sweep", recorded / "test.safetensors", "--out", tmp_path / "s", "--strategies", "margin"]
    _, loud, _ = run(*words)
    code, quiet, err = run(*(["-q", *words] if place == "first" else [*words, "--quiet"]))
    assert (code, err) == (0, "")
    assert set(quiet.splitlines()) < set(loud.splitlines())
    assert "best at" in quiet
    assert "wrote" in loud
    assert "wrote" not in quiet


def test_quiet_is_of_one_command(run, recorded, tmp_path):
    words = ["sweep", recorded / "test.safetensors", "--out", tmp_path / "s", "--strategies", "margin"]
    run("-q", *words)
    assert "wrote" in run(*words)[1]


def test_json_is_all_of_stdout(run, recorded, model, tmp_path):
    traces = {split: recorded / f"{split}.safetensors" for split in ("calibration", "test")}
    (tmp_path / "in.csv").write_text("text\ngood film\n")
    results = {}
    for verb, words in {
        "sweep": [traces["test"], "--out", tmp_path / "s", "--strategies", "margin"],
        "calibrate": [model, "--trace", traces["calibration"], "--speedup", "1.2"],
        "evaluate": [model, "--trace", traces["test"]],
        "record": [model, "--data", recorded / "data", "--out", tmp_path / "t"],
        "predict": [model, "--data", tmp_path / "in.csv", "--out", tmp_path / "out.csv"],
    }.items():
        code, out, err = run(verb, *words, "--json")
        assert code == 0, err
        results[verb] = json.loads(out)
        assert run("-q", verb, *words, "--json", *(["--overwrite"] if verb in ("record", "predict") else []))[2] == ""
    assert results["calibrate"]["strategy"]
    assert results["evaluate"]["rows"][0]["name"] == "policy"
    assert results["record"]["texts"] == 300
    assert results["predict"]["rows"] == 1


def test_errors_with_json_are_on_stderr(refused, tmp_path):
    refused("does not exist", "sweep", tmp_path / "none", "--json")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_verbs_and_options(shell, tmp_path, monkeypatch, run):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ZSH", raising=False)
    monkeypatch.delenv("ZSH_CUSTOM", raising=False)
    code, _, err = run("--install-completion", "--shell", shell, "--out", tmp_path / "script")
    assert code == 0, err
    script = (tmp_path / "script").read_text()
    assert all(word in script for word in (*VERBS, "max-disagreement", "quiet"))
    assert not list(tmp_path.glob(".*rc"))


def test_completion_works_in_bash(tmp_path, monkeypatch, run):
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, _ = run("--install-completion", "--shell", "bash")
    assert code == 0
    script = tmp_path / ".local" / "share" / "bash-completion" / "completions" / "exitpoll"
    assert out.startswith(f"wrote {script}\n")
    assert str(script) in (tmp_path / ".bashrc").read_text()
    lines = f"source {script}; COMP_WORDS=(exitpoll cal); COMP_CWORD=1; _exitpoll; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=False)
    assert done.stdout == "calibrate\n", done


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_is_never_cut(run, monkeypatch, verb, width):
    monkeypatch.setenv("COLUMNS", "1000")
    wide = run(*filter(None, [verb]), "--help")[1]
    names = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", wide))
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = run(*filter(None, [verb]), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= width
    assert out.count("…") == wide.count("…")
    if width >= 80:  # where names are longer than their column, they go on in the next line
        assert all(re.search(rf"{name}(?![a-z0-9-])", out) for name in names)
