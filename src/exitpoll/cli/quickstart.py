"""The whole story in ten commands, on the data and encoder that `pip install` alone brings.

Every step is a command that a user could type, and leaves a file; a step whose file is there is not run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from exitpoll.data.demo import EMBEDDED
from exitpoll.data.splits import load_splits
from exitpoll.errors import InputError, MissingExtraError
from exitpoll.files import read_json, write_json, write_text

CHOICES, INPUT = "quickstart.json", "sentences.jsonl"
EXTRAS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "plots": ("jinja2", "matplotlib")}
SENTENCES = (
    "a gorgeous , witty , seductive movie .",
    "it is dull .",
    "the plot is paper-thin , and yet the two leads are so charming that it hardly matters .",
    "not without its moments , but you will have forgotten them by the time you reach the car .",
    "one of the year's best films .",
    "i can't say that i didn't laugh .",
)


@dataclass(frozen=True)
class Step:
    """One command, and the file by which to tell that it is done."""

    title: str
    words: list[str]  # of the command line, after `exitpoll`
    makes: Path
    otherwise: list[str] | None = None  # what to run where the first cannot be done


def steps(folder: Path, *, encoder: str, data: str, fast: bool) -> Iterator[Step]:
    """List the steps in their order.

    Args:
        folder: Where everything is written.
        encoder: What to train.
        data: What to train on.
        fast: Use fewer texts and one epoch.

    Yields:
        The steps.
    """
    model = str(folder / "model")
    traces = {split: folder / f"{split}.safetensors" for split in ("calibration", "test")}
    limit, epochs, logs, texts, rounds = ["--limit", "1000"], "1", "1", "30", "1"
    if not fast:
        limit, epochs, logs, texts, rounds = [], "3", "2", "100", "2"
    size = [*limit, "--epochs", epochs, "--logs-per-epoch", logs]
    start = ["train", "--encoder", encoder, "--data", data, "--out", model, "--resume", *size]
    yield Step("Train a head after every layer", start, folder / "model")
    for split, trace in traces.items():
        words = ["record", model, "--data", data, "--split", split, "--out", str(trace)]
        yield Step(f"Record what every exit says of the {split} texts", words, trace)
    words = ["sweep", str(traces["calibration"]), "--out", str(folder / "sweep")]
    yield Step("Compare all strategies", words, folder / "sweep" / "curves.json")
    promise = ["--max-drop", "0.03" if fast else "0.01", "--risk", "accuracy"]
    words = ["calibrate", model, "--trace", str(traces["calibration"])]
    title, policy = "Choose the fastest policy that keeps a promise", folder / "model" / "policy.json"
    yield Step(title, [*words, *promise], policy, otherwise=[*words, "--speedup", "1.5"])
    words = ["evaluate", model, "--trace", str(traces["test"]), "--out", str(folder / "evaluation.json")]
    yield Step("See on the test texts whether it is kept", words, folder / "evaluation.json")
    answers = folder / "answers.jsonl"
    words = ["predict", model, "--input", str(folder / INPUT), "--output", str(answers), "--resume"]
    yield Step("Answer a few sentences", words, answers)
    words = ["export", model, *([] if fast else ["--data", data])]
    yield Step("Export it for ONNX Runtime", words, folder / "model" / "onnx" / "exported.json")
    words = ["bench", model, "--data", data, "--texts", texts, "--rounds", rounds, "--out", str(folder / "bench")]
    yield Step("Measure wall-clock time", [*words, "--batch-sizes", "1", "32"], folder / "bench" / "bench.json")
    words = ["report", model, "--data", data, "--trace", str(traces["test"]), "--out", str(folder / "report")]
    bench = ["--bench", str(folder / "bench" / "bench.json")]
    yield Step("Put it all on one page", [*words, *bench], folder / "report" / "report.html")


def prepare(folder: Path, choices: Mapping[str, Any]) -> None:
    """Make the folder, or make sure that the one that is there was begun with the same choices.

    Args:
        folder: Where everything is written.
        choices: What was asked for.
    """
    begun = read_json(folder / CHOICES)
    if begun is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"'{folder}' exists and is no quickstart; choose another folder with --out")
    if begun is not None and begun != dict(choices):
        raise InputError(f"'{folder}' was begun otherwise, with {_listed(begun)}; choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CHOICES, dict(choices))
    if not (folder / INPUT).exists():  # a job that was cut off knows its input by its time
        write_text(folder / INPUT, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _examples(choices)))


def _examples(choices: Mapping[str, Any]) -> list[dict[str, str]]:
    """Choose some texts to answer: of one's own data, the first of the test split."""
    if choices["data"] == EMBEDDED:
        return [{"text": text} for text in SENTENCES]
    test = load_splits(choices["data"]).test
    firsts = list(test.first)[: len(SENTENCES)]
    if test.second is None:
        return [{"text": text} for text in firsts]
    return [{"text_a": first, "text_b": second} for first, second in zip(firsts, test.second, strict=False)]


def check_installed(encoder: str) -> None:
    """Say what is missing before the first step, not at the tenth.

    Args:
        encoder: What is to be trained.
    """
    from exitpoll.models.pretrained import encoder_folder

    encoder_folder(encoder)
    for extra, packages in EXTRAS.items():
        if any(find_spec(package) is None for package in packages):
            raise MissingExtraError("the quickstart", extra)


def answers_in_words(path: Path, layers: int) -> list[str]:
    """Say of every sentence where it left, and with what answer.

    Args:
        path: What `exitpoll predict` wrote.
        layers: How many layers the model has.

    Returns:
        A line for each.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    width = max(len(str(row["predicted"])) for row in rows)
    return [
        f"{'■' * row['depth']}{'□' * (layers - row['depth'])} after {row['depth']:>2} of {layers}: "
        f"{row['predicted']!s:<{width}} {_percent(row['probability'])}  {row.get('text') or row['text_a']}"
        for row in rows
    ]


def _percent(probability: Any) -> str:
    """Write a probability, where there is one."""
    return f"{100 * probability:3.0f} %" if isinstance(probability, float) else ""


def _listed(choices: Mapping[str, Any]) -> str:
    """Write choices in a line."""
    return ", ".join(f"{name} {value}" for name, value in choices.items())
