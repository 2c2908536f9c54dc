"""The README: its code runs, its commands exist, it is short."""

from __future__ import annotations

import re

from tests.docs.conftest import ROOT, code_blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_code_runs(run_page, tmp_path):
    printed = run_page("README.md")
    assert "guarantee: answers differ from the full model's on at most 2 % of texts, with 95 % confidence" in printed
    assert re.search(r"^(bad|good|so-so) \d\.\d\d after [123] layers$", printed, flags=re.M)
    assert (tmp_path / "trec-bert" / "policy.json").exists()
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 3


def test_it_speeds_up_a_model_in_five_lines():
    [commands] = [code for language, code in code_blocks(README) if "exitpoll train" in code]
    assert len(commands.splitlines()) == 5


def test_it_can_be_read_in_a_minute():
    assert len(README.splitlines()) <= 150


def test_its_make_targets_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    lines = [line for _, code in code_blocks(README) for line in code.splitlines()]
    named = {line.split()[1] for line in lines if line.startswith("make ")}
    assert named == {"quickstart", "test"}
    assert named <= targets


def test_its_gains_compare_onnx_runtime_with_onnx_runtime():
    """What ONNX Runtime gains without exits is never credited to early exit."""
    performance = (ROOT / "docs" / "reference" / "performance.md").read_text(encoding="utf-8")
    [gains] = re.findall(r"<!-- gains -->\n(.*?)\n<!-- /gains -->", performance, flags=re.S)
    [adopted] = re.findall(r"<!-- adopt in short -->\n(.*?)\n<!-- /adopt in short -->", README, flags=re.S)
    lines = [line for line in gains.splitlines() if "| ONNX Runtime" in line]
    rows = [line.split("|")[1:-1] for line in [*lines, *adopted.splitlines()[2:]]]
    assert len(rows) >= 4 + 3
    for row in rows:
        ours, both = (float(re.search(r"[\d.]+(?= ×)", cell)[0]) for cell in row[-2:])
        assert ours < both
