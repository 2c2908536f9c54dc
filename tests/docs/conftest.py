"""A folder in which the documents' encoder, data and files are tiny ones, to run their code in."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from exitpoll import Trace, calibrate, load_model, load_splits, record
from exitpoll.adoption import steps as adoption
from exitpoll.cli.main import main
from exitpoll.decide.metrics import METRICS
from exitpoll.decide.strategies import STRATEGIES
from tests.tiny import save_varied_classifier, toy_rows, write_jsonl, write_toy_folder

ROOT = Path(__file__).parents[2]


def code_blocks(text):
    """The code that can be run: pairs of language and code, in the order of the document."""
    return re.findall(r"```(bash|python)\n(.*?)```", text, flags=re.S)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, model_folder):
    """What a reader of a page has by then: data, a calibrated model with traces, a classifier."""
    folder = tmp_path_factory.mktemp("prepared")
    data = write_toy_folder(folder / "trec", train=640, others=400)
    (folder / "questions.csv").write_text("text\ngood film\nbad plot\n")
    (folder / "questions.txt").write_text("".join(f"{text}\n" for text, _ in toy_rows(80, seed=4)))
    write_jsonl(folder / "traffic.jsonl", [{"text": text} for text, _ in toy_rows(1100, seed=5)])
    save_varied_classifier(folder / "my-classifier")
    model = shutil.copytree(model_folder, folder / "trec-bert")
    loaded, splits = load_model(model), load_splits(data)
    for split in ("calibration", "test"):
        about = {"data": "trec", "split": split, "metric": splits.metric}
        record(loaded, getattr(splits, split), folder / f"{split}.safetensors", about=about)
    calibrate(Trace.load(folder / "calibration.safetensors"), speedup=1.2).save(model / "policy.json")
    return folder


@pytest.fixture
def run_page(prepared, encoder_folder, tmp_path, monkeypatch, capsys):
    """Run the code of a page, beside what was prepared, but for what the page itself makes; return what it prints."""

    def call(path):
        text = (ROOT / path).read_text(encoding="utf-8")
        made = set(re.findall(r"--out (\S+)", text))
        for item in prepared.iterdir():
            if item.name not in made:
                (shutil.copytree if item.is_dir() else shutil.copy)(item, tmp_path / item.name)
        monkeypatch.chdir(tmp_path)
        text = text.replace("google-bert/bert-base-uncased", str(encoder_folder))
        text = text.replace("--latency-ms 5", "--latency-ms 500")  # a busy machine is slow even with tiny models
        for name, few in {"TEACHING": replace(adoption.TEACHING, epochs=2), "TIMED": 8, "ROUNDS": 1}.items():
            monkeypatch.setattr(adoption, name, few)
        with patch.dict(STRATEGIES), patch.dict(METRICS):  # a page may add a row
            for language, code in code_blocks(text):
                if language == "python":
                    exec(compile(code, path, "exec"), {})
                    continue
                for command in code.splitlines():
                    known = ("exitpoll ", "make ", "pip install ", "python docs/", "python -m http.server")
                    assert command.startswith(known) or not command, command
                    if command.startswith("exitpoll "):
                        monkeypatch.setattr(sys, "argv", shlex.split(command))
                        main()
        return capsys.readouterr().out

    return call
