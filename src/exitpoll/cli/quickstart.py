"""The quickstart: ten commands from data to a report, on the data and encoder of the extra `demo`.

Every step is a command that a user could type, and writes a file; a step whose file exists is not run again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from exitpoll.cli.pace import Pace, Work, choose_texts, describe, measure
from exitpoll.data.demo import EMBEDDED
from exitpoll.data.splits import Splits, Texts, load_splits
from exitpoll.errors import InputError, check_installed
from exitpoll.files import read_json, write_json, write_text
from exitpoll.models.folder import MANIFEST, POLICY, REPORT
from exitpoll.report.html import PAGE

CHOICES, INPUT, MODEL = "quickstart.json", "sentences.jsonl", "model"
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
class Choices:
    """What the quickstart was started with."""

    encoder: str
    data: str
    fast: bool


@dataclass(frozen=True)
class Size:
    """How much work the steps do, as options of their commands and in training steps."""

    most_texts: int  # to train on
    train: Sequence[str]
    max_accuracy_drop: str
    bench: Sequence[str]
    work: Work


FAST = Size(
    most_texts=1000,
    train=("--epochs", "1", "--logs-per-epoch", "1"),
    max_accuracy_drop="0.03",
    bench=("--texts", "30", "--rounds", "2"),
    work=Work(epochs=1, others=90),
)
COMPLETE = Size(
    most_texts=sys.maxsize,
    train=("--epochs", "2", "--logs-per-epoch", "1"),
    max_accuracy_drop="0.01",
    bench=("--texts", "50", "--rounds", "3"),
    work=Work(epochs=2, others=150),
)


@dataclass(frozen=True)
class Started:
    """A quickstart that may run: what was chosen, and how much of the data it trains on."""

    choices: Choices
    limit: int | None  # train on at most so many texts; None is all
    pace: Pace | None = None  # of the training; None if that is done
    lines: Sequence[str] = ()  # how long it takes


def size_of(choices: Choices) -> Size:
    """Return how much work the steps do."""
    return FAST if choices.fast else COMPLETE


@dataclass(frozen=True)
class Step:
    """One command, and the file that shows that it is done."""

    title: str
    verb: str
    arguments: Sequence[str]
    makes: Path
    fallback: Sequence[str] = ()  # arguments to use where no guarantee is possible

    @property
    def words(self) -> list[str]:
        """The command line, after `exitpoll`."""
        return [self.verb, *self.arguments]


def steps(folder: Path, started: Started) -> Iterator[Step]:
    """Iterate over the steps in their order.

    Args:
        folder: Where everything is written.
        started: What to train, on what, and how long.

    Yields:
        The steps.
    """
    choices, size = started.choices, size_of(started.choices)
    model, data = folder / MODEL, ["--data", choices.data]
    limit = [] if started.limit is None else ["--limit", str(started.limit)]
    arguments = ["--encoder", choices.encoder, *data, "--out", str(model), "--resume", *limit, *size.train]
    yield Step("Train a head after every layer", "train", arguments, model)
    traces = {split: folder / f"{split}.safetensors" for split in ("calibration", "test")}
    for split, trace in traces.items():
        arguments = [str(model), *data, "--split", split, "--out", str(trace)]
        yield Step(f"Record every exit's logits on the {split} texts", "record", arguments, trace)
    yield from _decision_steps(folder, model, traces["calibration"], traces["test"], size)
    yield from _engine_steps(folder, model, data, traces["test"], size, measure_export=not choices.fast)


def _decision_steps(folder: Path, model: Path, calibration: Path, test: Path, size: Size) -> Iterator[Step]:
    """Iterate over the steps from traces to a policy that was evaluated."""
    arguments = [str(calibration), "--out", str(folder / "sweep")]
    yield Step("Compare all strategies", "sweep", arguments, folder / "sweep" / "curves.json")
    trace = [str(model), "--trace", str(calibration)]
    yield Step(
        "Choose the fastest policy that a guarantee allows",
        "calibrate",
        [*trace, "--max-accuracy-drop", size.max_accuracy_drop],
        model / POLICY,
        fallback=[*trace, "--speedup", "1.5"],
    )
    evaluation = folder / "evaluation.json"
    arguments = [str(model), "--trace", str(test), "--out", str(evaluation)]
    yield Step("Check the guarantee on the test texts", "evaluate", arguments, evaluation)


def _engine_steps(
    folder: Path, model: Path, data: Sequence[str], test: Path, size: Size, *, measure_export: bool
) -> Iterator[Step]:
    """Iterate over the steps from a policy to predictions, an export, timings and a report."""
    answers, bench, page = folder / "answers.jsonl", folder / "bench", folder / REPORT / PAGE
    arguments = [str(model), "--data", str(folder / INPUT), "--out", str(answers), "--resume"]
    yield Step("Classify a few sentences", "predict", arguments, answers)
    arguments = [str(model), *(data if measure_export else [])]
    yield Step("Export it for ONNX Runtime", "export", arguments, model / "onnx" / MANIFEST)
    arguments = [str(model), *data, *size.bench, "--out", str(bench), "--batch-sizes", "1", "32"]
    yield Step("Measure wall-clock time", "bench", arguments, bench / "bench.json")
    arguments = [str(model), *data, "--trace", str(test), "--out", str(page.parent)]
    yield Step("Write the report", "report", [*arguments, "--bench", str(bench / "bench.json")], page)


def check_requirements(encoder: str) -> None:
    """Check that everything is installed before the first step, not at the tenth.

    Args:
        encoder: What is to be trained.
    """
    from exitpoll.models.pretrained import encoder_folder

    encoder_folder(encoder)
    for extra, packages in EXTRAS.items():
        check_installed(packages, "the quickstart", extra)


def prepare(folder: Path, choices: Choices) -> Started:
    """Create the folder, or check that it was started with the same choices.

    Args:
        folder: Where everything is written.
        choices: What was asked for.

    Returns:
        The quickstart, new or to be continued.
    """
    earlier = read_json(folder / CHOICES)
    if earlier is None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"'{folder}' exists and is not a quickstart; choose another folder with --out")
    if earlier is not None:
        limit = earlier.pop("limit", None)
        if earlier != asdict(choices) or not isinstance(limit, int | None):
            listed = ", ".join(f"{name} {value}" for name, value in earlier.items())
            raise InputError(f"'{folder}' was started with {listed}; choose another folder with --out")
        if (folder / MODEL).exists():
            return Started(choices, limit)
    splits = load_splits(choices.data)
    pace = measure(choices.encoder, splits.train)
    if earlier is not None:
        return Started(choices, limit, pace, _describe_time(choices, splits, pace, limit))
    limit = _choose_limit(choices, splits, pace)
    folder.mkdir(parents=True, exist_ok=True)
    rows = _sentences(choices.data, splits.test)
    write_text(folder / INPUT, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_json(folder / CHOICES, asdict(choices) | {"limit": limit})
    return Started(choices, limit, pace, _describe_time(choices, splits, pace, limit))


def _choose_limit(choices: Choices, splits: Splits, pace: Pace) -> int | None:
    """Choose how many texts to train on at most; None is all."""
    size, held_out = size_of(choices), len(splits.calibration) + len(splits.test)
    texts = choose_texts(size.work, min(size.most_texts, len(splits.train)), held_out, pace.seconds_a_step)
    return None if texts == len(splits.train) else texts


def _describe_time(choices: Choices, splits: Splits, pace: Pace, limit: int | None) -> list[str]:
    """Say how long everything takes here, and how to make it shorter."""
    held_out = len(splits.calibration) + len(splits.test)

    def takes(size: Size, texts: int) -> str:
        return describe(size.work.minutes(texts, held_out, pace.seconds_a_step))

    size, every = size_of(choices), len(splits.train)
    texts, most = every if limit is None else limit, min(size.most_texts, every)
    threads = f"{pace.threads} thread{'' if pace.threads == 1 else 's'}"
    lines = [f"this takes {takes(size, texts)} here, by the time of a few training steps on {threads}"]
    if texts < most:
        longer = takes(size, most)
        lines.append(f"it trains on {texts:,} of {most:,} texts: with all of them it would take {longer}")
    if not choices.fast:
        faster = takes(FAST, min(FAST.most_texts, every))
        lines.append(f"shorter: exitpoll quickstart --fast takes {faster}, and gives a weaker model")
    return lines


def _sentences(data: str, test: Texts) -> list[dict[str, str]]:
    """Return a few texts to classify: of other data than the embedded, the first of the test split."""
    if data == EMBEDDED:
        return [{"text": text} for text in SENTENCES]
    firsts = list(test.first)[: len(SENTENCES)]
    if test.second is None:
        return [{"text": text} for text in firsts]
    return [{"text_a": first, "text_b": second} for first, second in zip(firsts, test.second, strict=False)]


def describe_answers(path: Path, layers: int) -> list[str]:
    """Show for every sentence how deep it went and how it was classified.

    Args:
        path: What `exitpoll predict` wrote.
        layers: How many layers the model has.

    Returns:
        One line per sentence.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    width = max(len(str(row["predicted"])) for row in rows)
    return [
        f"{'■' * row['depth']}{'□' * (layers - row['depth'])} after {row['depth']:>2} of {layers}: "
        f"{row['predicted']!s:<{width}} {_percent(row['probability'])}  {row.get('text') or row['text_a']}"
        for row in rows
    ]


def describe_speed(path: Path) -> list[str]:
    """State what ONNX Runtime gains without exits and what early exit adds, never one for the other.

    Args:
        path: What `exitpoll bench` wrote.

    Returns:
        A line for every runtime and batch size.
    """
    from exitpoll.benchmark.timing import Benchmark

    return ["wall-clock time, with the range over the rounds:", *(f"  {gain}" for gain in Benchmark.load(path).gains)]


def _percent(probability: object) -> str:
    """Format a probability, where there is one."""
    return f"{100 * probability:3.0f} %" if isinstance(probability, float) else ""
