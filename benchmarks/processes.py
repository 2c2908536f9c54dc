"""Texts a second of `predict` with one process, with two, and with one engine of two threads.

python benchmarks/processes.py trec-bert/onnx data/trec

Each way runs alone, in turn, round after round; the start-up time, that of a file with one row for every process, is
subtracted. On a machine of two cores, nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import write_results
from exitpoll import load_model
from exitpoll.data.batching import Text
from exitpoll.engine.inputs import read_texts

WAYS = {  # flags of predict, by name
    "1 process, 1 thread": ("--processes", "1"),
    "2 processes, 1 thread each": ("--processes", "2"),
    "1 engine, 2 threads": ("--threads", "2"),
}
RATIOS = {  # what is stated, as rates of one way over those of another
    "2 processes over 1": ("2 processes, 1 thread each", "1 process, 1 thread"),
    "2 processes over 2 threads": ("2 processes, 1 thread each", "1 engine, 2 threads"),
}


def write_rows(path: Path, texts: Sequence[Text], rows: int) -> Path:
    """Write so many rows, repeating the texts or pairs of texts."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            text = texts[number % len(texts)]
            columns = {"text": text} if isinstance(text, str) else {"text_a": text[0], "text_b": text[1]}
            file.write(json.dumps({"id": number, **columns}) + "\n")
    return path


def predict(model: str, source: Path, out: Path, flags: Sequence[str]) -> float:
    """Run `exitpoll predict` on a file, and return its seconds."""
    command = [sys.executable, "-m", "exitpoll", "predict", model, "--data", str(source), "--out", str(out)]
    environment = {**os.environ, **({"OMP_NUM_THREADS": "1"} if "--processes" in flags else {})}
    started = time.perf_counter()
    done = subprocess.run([*command, *flags, "--overwrite"], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"predict failed: {done.stderr}")
    return time.perf_counter() - started


def measure(model: str, texts: Sequence[Text], rows: int, rounds: int, ways: Mapping[str, Sequence[str]]) -> dict:
    """Time every way in turn.

    Args:
        model: The model folder.
        texts: Some texts.
        rows: Rows in the file.
        rounds: How often.
        ways: Flags by name.

    Returns:
        By name: seconds to start, and texts a second net of that, of every round and their median.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    starts: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        source, out = write_rows(Path(folder) / "rows.jsonl", texts, rows), Path(folder) / "out.jsonl"
        few = write_rows(Path(folder) / "few.jsonl", texts, 2)  # a shard for each process
        for number in range(rounds):
            for name, flags in ways.items():
                short = [*flags, "--shard-rows", "1"] if "--processes" in flags else flags
                starts[name].append(predict(model, few, out, short))
                seconds[name].append(predict(model, source, out, flags))
                print(f"round {number + 1}: {name}: {seconds[name][-1]:.1f} s, {starts[name][-1]:.1f} s to start")
    return {name: summarize(rows, seconds[name], statistics.median(starts[name])) for name in ways}


def summarize(rows: int, seconds: Sequence[float], start: float) -> dict[str, object]:
    """Return the rates of a way, net of its start-up time."""
    if min(seconds) <= start:
        raise SystemExit(f"{rows} rows took no longer than the start-up time: give more --rows")
    rates = [rows / (duration - start) for duration in seconds]
    return {
        "start_seconds": round(start, 2),
        "texts_a_second": round(statistics.median(rates), 1),
        "rounds": [round(rate, 1) for rate in rates],
    }


def ratios_of(ways: Mapping[str, Mapping], ratios: Mapping[str, tuple[str, str]]) -> dict[str, object]:
    """Return the ratio of two ways: median, smallest and largest over the rounds."""
    found: dict[str, object] = {}
    for name, (first, second) in ratios.items():
        values = [a / b for a, b in zip(ways[first]["rounds"], ways[second]["rounds"], strict=True)]
        found[name] = [round(pick(values), 3) for pick in (statistics.median, min, max)]
    return found


def main(
    name: str = "processes",
    about: str | None = __doc__,
    rows: int = 8192,
    ways: Mapping[str, Sequence[str]] = WAYS,
    ratios: Mapping[str, tuple[str, str]] = RATIOS,
) -> None:
    """Time some ways to predict a file, and keep their ratios under a name."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("model")
    parser.add_argument("data", help="a file, or a folder with a test split")
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    texts = list(read_texts(load_model(arguments.model), arguments.data, "test").texts)
    timed = measure(arguments.model, texts, arguments.rows, arguments.rounds, ways)
    found = ratios_of(timed, ratios)
    write_results(name, {"rows": arguments.rows, "ways": timed, "ratios": found})
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
