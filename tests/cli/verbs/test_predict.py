"""exitpoll predict: a file is answered in a file, standard input on standard output."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from exitpoll import Engine, Policy


@pytest.fixture
def questions(tmp_path):
    (tmp_path / "in.csv").write_text("text\ngood film\nbad film\n")
    return tmp_path / "in.csv"


def test_a_file(run, recorded, questions, tmp_path):
    code, out, err = run("predict", recorded / "model", "--data", questions, "--out", tmp_path / "out.jsonl")
    assert code == 0, err
    assert f"wrote {tmp_path / 'out.jsonl'}: 2 rows, mean depth 3.00 of 3 layers" in out
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["good film", "bad film"]


def test_a_folder_with_several_processes(run, refused, recorded, questions, tmp_path):
    folder, out = tmp_path / "questions", tmp_path / "answers"
    folder.mkdir()
    (folder / questions.name).write_bytes(questions.read_bytes())
    words = ["predict", recorded / "model", "--data", folder, "--out"]
    code, printed, _ = run(*words, out, "--processes", "1", "--shard-format", "jsonl")
    assert (code, [path.suffix for path in sorted(out.glob("shard-*"))]) == (0, [".jsonl"])
    assert f"wrote {out}: " in printed
    code, _, _ = run(*words, tmp_path / "answers.jsonl")
    assert code == 0
    assert (tmp_path / "answers.jsonl").read_bytes() == next(out.glob("shard-*")).read_bytes()
    refused("exists already; choose another folder or use --overwrite", *words, out)
    refused("exists already; choose another name or use --overwrite", *words, tmp_path / "answers.jsonl")
    refused("threads: each process has one; use --processes", *words, tmp_path / "x", "--processes", 1, "--threads", 2)


def test_standard_input(run, recorded, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("good film\nbad film\n"))
    code, out, err = run("predict", recorded / "model", "--data", "-")
    assert code == 0, err
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["good film", "bad film"]


def test_lines_of_json_on_standard_input(run, refused, recorded, monkeypatch):
    words = ("predict", recorded / "model", "--data", "-")
    monkeypatch.setattr("sys.stdin", io.StringIO('{"id": 7, "words": "good film"}\n'))
    code, out, err = run(*words, "--text-column", "words")
    assert code == 0, err
    assert json.loads(out)["id"] == 7
    monkeypatch.setattr("sys.stdin", io.StringIO('{"id": 7, "words": "good film"}\n'))
    refused("line 1: no text column among id, words; name it: --text-column", *words)


def test_explanations(run, model, questions, monkeypatch):
    Policy("max_prob", 0.0).save(model / "policy.json")
    code, out, err = run("predict", model, "--data", questions, "--explain")
    assert code == 0, err
    assert out.count("after 1 of 3 layers: score 0.") == 2
    assert out.startswith("'good film' (policy: max_prob)\nlayers  head  probability")
    monkeypatch.setattr("sys.stdin", io.StringIO('{"words": "good film"}\n{"words": ""}\n'))
    words = ("--text-column", "words", "--on-error", "skip", "--json")
    code, out, err = run("predict", model, "--data", "-", "--explain", *words)
    assert code == 0, err
    explained, skipped = map(json.loads, out.splitlines())
    assert explained == Engine.load(model).explain("good film").to_dict()
    assert skipped["error"].startswith("line 2 is empty")


def test_what_cannot_be_explained(refused, recorded, questions, tmp_path, monkeypatch):
    words = ("predict", recorded / "model", "--explain", "--data")
    refused("explanations go to standard output: leave out --out", *words, questions, "--out", tmp_path / "out.csv")
    refused("nowhere.csv' does not exist", *words, tmp_path / "nowhere.csv")
    monkeypatch.setattr("sys.stdin", io.StringIO('{"text": "   "}\n'))
    refused("line 1 is empty, or neither a text nor a pair of texts", *words, "-")


def test_how_a_file_was_read_is_noted(run, recorded, tmp_path):
    (tmp_path / "in.csv").write_text("id;text\n1;good film\n")
    code, out, err = run("predict", recorded / "model", "--data", tmp_path / "in.csv", "--out", tmp_path / "out.csv")
    assert code == 0, err
    assert "note: 'in.csv' is read as separated by semicolons, as its header" in out


def test_refusals(refused, recorded, questions, tmp_path):
    model = recorded / "model"
    refused("name the file to write with --out", "predict", model, "--data", questions)
    refused("leave out --out", "predict", model, "--data", "-", "--out", tmp_path / "out.csv")
    out = ("--data", questions, "--out", tmp_path / "out.csv")
    refused("has no export for onnx", "predict", model, *out, "--runtime", "onnx")
    refused(
        'predict does not take "more", "words"; see: exitpoll predict --help', "predict", model, "more", "words", *out
    )
    (tmp_path / "out.csv").touch()
    refused("exists already", "predict", model, "--data", questions, "--out", tmp_path / "out.csv")


WITHOUT = """
import sys
MISSING = ("torch", "transformers", "scipy", "sklearn", "safetensors", "accelerate", "huggingface_hub", "datasets")
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Finder())
import importlib.util
importlib.util.find_spec = lambda name, *_, find=importlib.util.find_spec: None if name in MISSING else find(name)
from exitpoll.cli.main import main
main()
"""


def test_an_export_predicts_without_torch_and_its_kind(exported_folder, tmp_path):
    (tmp_path / "in.csv").write_text("text\ngood film\n")
    words = ["predict", str(exported_folder), "--data", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.csv")]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 2
