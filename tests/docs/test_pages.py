"""The pages of the documentation: their code runs, their links lead somewhere, all of them are in the navigation."""

from __future__ import annotations

import json
import re

import pytest

from exitpoll import Policy
from exitpoll.cli.app import app
from exitpoll.cli.groups import VERBS
from tests.docs.conftest import ROOT, code_blocks

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
PRINTED = {  # a sign that the code of a page did what the page says
    "docs/how-to/analyze.md": "report.html",
    "docs/how-to/benchmark.md": "plain transformers",
    "docs/how-to/browser.md": "exits early in plain ONNX Runtime too",
    "docs/how-to/calibrate.md": "ms a text on average",
    "docs/how-to/choose-a-strategy.md": "best accuracy in % on 400 texts",
    "docs/how-to/command-line.md": '"certificate": {',
    "docs/how-to/drop-in.md": "layers  head  probability",
    "docs/how-to/export.md": "Prediction(label=",
    "docs/how-to/extend.md": "gini True",
    "docs/how-to/past-one-machine.md": "wrote answers.csv",
    "docs/how-to/predict-files.md": "answers.parquet",
    "docs/how-to/reproduce.md": "policy: patience",
    "docs/how-to/serve.md": "exit code 0",
    "docs/how-to/train.md": "[{'label':",
    "docs/tutorials/existing-classifier.md": "load it: exitpoll.Engine.load(",
    "docs/tutorials/first-model.md": "guarantee: answers differ from the full model's on at most 2 % of texts",
}


@pytest.mark.parametrize("page", PRINTED)
def test_the_code_of_a_page_runs(page, run_page, monkeypatch):
    if page.endswith("serve.md"):
        pytest.importorskip("uvicorn", reason="the extra server is not installed")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # its client asks this server only
    assert PRINTED[page] in run_page(page)


def test_all_code_is_run():
    with_code = {page for page in PAGES if code_blocks((ROOT / page).read_text(encoding="utf-8"))}
    assert with_code - {"docs/index.md", "docs/how-to/serve-clients.md"} == set(PRINTED)  # see test_clients.py
    assert code_blocks((DOCS / "index.md").read_text(encoding="utf-8")) == [("bash", "make quickstart\n")]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_every_block_is_in_a_language_that_is_run_or_shown(page):
    languages = set(re.findall(r"^```(\w*)$", (ROOT / page).read_text(encoding="utf-8"), flags=re.M)) - {""}
    assert languages <= {"bash", "python", "js", "json", "text"}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *PAGES])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert target.startswith("https://") or ((ROOT / page).parent / target).exists(), target


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": (\S+\.md)$", navigation, flags=re.M))
    assert listed == {page.removeprefix("docs/") for page in PAGES}


def test_the_policy_shown_can_be_loaded(tmp_path):
    [policy] = re.findall(
        r"```json\n(.*?)```", (DOCS / "reference" / "files.md").read_text(encoding="utf-8"), flags=re.S
    )
    (tmp_path / "policy.json").write_text(policy)
    assert Policy.load(tmp_path / "policy.json").to_dict() == json.loads(policy)


def test_every_verb_shows_an_example(capsys):
    for words in ([], *([verb] for verb in VERBS)):
        app([*words, "--help"], result_action="return_value")
        assert "Example: exitpoll" in capsys.readouterr().out, words
