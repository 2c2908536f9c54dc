"""Law 9: the README's code and commands run, and the documents' figures are those of the results files."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from exitpoll.cli import main
from tests.tiny import write_toy_folder

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEFAULTS = json.loads((ROOT / "experiments" / "results" / "defaults.json").read_text())


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


@pytest.fixture
def here(tmp_path, monkeypatch, encoder_folder):
    """A folder in which the README's encoder and dataset are tiny ones."""
    write_toy_folder(tmp_path / "trec")
    monkeypatch.chdir(tmp_path)
    return lambda code: code.replace("google-bert/bert-base-uncased", str(encoder_folder))


def test_python_blocks_run_one_after_another(here, capsys):
    for block in blocks("python"):
        exec(compile(here(block), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "[{'label':" in printed
    assert printed.startswith("[0.")


def test_train_command_runs(here, monkeypatch, tmp_path):
    [command] = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("exitpoll ")]
    monkeypatch.setattr(sys, "argv", shlex.split(here(command)))
    main()
    assert (tmp_path / "trec-bert" / "model.safetensors").exists()


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = {line.split()[1] for block in blocks("bash") for line in block.splitlines() if line.startswith("make ")}
    assert named
    assert named <= targets


def test_the_table_is_what_the_experiment_wrote():
    [row] = re.findall(r"^\| accuracy, % \|(.*)\|$", README, flags=re.M)
    measured = DEFAULTS["trec mean head_learning_rate=0.001 weights=uniform"]["test_scores"]
    assert [float(cell) for cell in row.split("|")] == [round(100 * score, 1) for score in measured]


def block(document, name):
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    [content] = re.findall(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, flags=re.S)
    return content


def test_the_table_behind_the_defaults_is_what_the_experiment_wrote():
    table = runpy.run_path(str(ROOT / "experiments" / "defaults.py"))["table"]
    assert block("training.md", "defaults") == table(DEFAULTS)


def test_the_stated_costs_are_what_the_benchmarks_wrote():
    step, loss = (
        json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        for name in ("training_step", "objective_cost")
    )
    stated = block("training.md", "cost")
    assert f"{step['ours_over_plain']:.2f} ×" in stated
    assert f"{100 * max(loss['share_of_a_step'].values()):.1f} %" in stated
    assert step["within_bar"]
    assert loss["within_bar"]


def test_links_within_the_project_lead_somewhere():
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (document.parent / target).exists(), (document, target)
