"""Time and memory of `exitpoll predict` on files of 1,000 to 100,000 rows: time should be linear, memory constant.

python benchmarks/scale.py trec-bert/onnx-int8 data/trec

Every file is predicted in a process of its own; the start-up time, that of a file with one row, is subtracted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common import FIGURES, write_results
from exitpoll import load_model
from exitpoll.engine.inputs import read_texts

ROWS = (1_000, 3_000, 10_000, 30_000, 100_000)


def write_rows(path: Path, texts: Sequence[str], rows: int) -> None:
    """Write so many rows, repeating the texts; a number makes every row unique."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            file.write(json.dumps({"id": number, "text": texts[number % len(texts)]}) + "\n")


# A small process in between: the peak memory of a process includes that of the process it was forked from.
LAUNCH = """
import json, os, subprocess, sys, time
started = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([status, time.perf_counter() - started, usage.ru_maxrss / 1024]))
"""


def predict(model: str, source: Path, out: Path) -> tuple[float, float]:
    """Run `exitpoll predict` on a file: seconds, and peak memory in MiB."""
    verb = [str(Path(sys.executable).with_name("exitpoll")), "predict", model]
    command = [sys.executable, "-I", "-S", "-c", LAUNCH, *verb, "--data", str(source), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, seconds, mebibytes = json.loads(done.stdout)
    if status:
        raise SystemExit(f"predict failed: {done.stderr}")
    return seconds, mebibytes


def draw(files: Sequence[Mapping[str, float]], path: Path) -> None:
    """Plot seconds and memory against rows."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    rows = [file["rows"] for file in files]
    for axes, name, label in zip(
        figure.subplots(1, 2), ("seconds", "mebibytes"), ("seconds", "peak memory, MiB"), strict=True
    ):
        axes.plot(rows, [file[name] for file in files], "o-", color="#4477aa")
        axes.set_xscale("log")
        axes.set_xlabel("rows")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        if name == "seconds":
            axes.set_yscale("log")
        else:
            axes.set_ylim(0)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure files of growing size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    chosen = parser.parse_args()
    texts = [str(text) for text in read_texts(load_model(chosen.model), chosen.data, "test").texts]
    files = []
    with tempfile.TemporaryDirectory() as scratch:
        source, out = Path(scratch) / "in.jsonl", Path(scratch) / "out.jsonl"
        write_rows(source, texts, 1)
        start_up, _ = predict(chosen.model, source, out)
        for rows in chosen.rows:
            out.unlink()
            write_rows(source, texts, rows)
            seconds, mebibytes = predict(chosen.model, source, out)
            files.append({"rows": rows, "seconds": round(seconds - start_up, 3), "mebibytes": round(mebibytes, 1)})
    slope = np.polyfit(np.log([file["rows"] for file in files]), np.log([file["seconds"] for file in files]), 1)[0]
    draw(files, FIGURES / "scale.png")
    write_results("scale", {"start_up_seconds": round(start_up, 2), "exponent": round(float(slope), 3), "files": files})


if __name__ == "__main__":
    main()
