"""What an exit before the first layer gains on the clock: the same model with it and without, in ONNX Runtime.

    python experiments/exit_zero_clock.py WORK trec=trec-model,trec-data mrpc=…

Adds exit 0, with n-grams, to trained models, exports both, calibrates them for at most 2 % of answers that differ from
the full model's, with exits chosen by the clock, and times them in turn on one thread. WORK keeps the models. Adds to
experiments/results/exit_zero.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from experiments.exit_zero import MAX_DISAGREEMENT, RESULTS
from transformers import set_seed

from exitpoll import EarlyExitModel, Engine, Policy, Splits, TrainingSettings, calibrate, load_splits, train
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.runtime import LoadedModel
from exitpoll.export.export import export_model
from exitpoll.files import read_json, write_json
from exitpoll.models.folder import POLICY
from exitpoll.models.tokenizer import load_tokenizer

RUNTIMES = ("onnx", "onnx-int8")
BATCH_SIZES = (1, 32)
TEXTS, ROUNDS = 200, 5


def add_exit_zero(folder: str, splits: Splits, out: Path) -> Path:
    """Train exit 0 on a copy of a model, unless that has been done."""
    if not out.exists():
        set_seed(0)
        extended = EarlyExitModel.from_pretrained(folder).with_exit_zero("ngrams")
        train(extended, load_tokenizer(folder), splits, out, TrainingSettings(schedule="exit-zero", seed=0))
    return out


def export(model: Path, splits: Splits, out: Path, runtime: str) -> Path:
    """Export a model with a policy of its own, unless that has been done."""
    if not out.exists():
        about = {"metric": splits.metric}

        def policy_for(loaded: LoadedModel) -> Policy:
            trace = record_in_memory(loaded, splits.calibration, about=about)
            return calibrate(trace, max_disagreement=MAX_DISAGREEMENT, exits="auto")

        export_model(model, out, int8=runtime == "onnx-int8", texts=splits.calibration, policy_for=policy_for)
    assert (out / POLICY).exists()
    return out


def seconds(engine: Engine, texts: list[Any], batch_size: int) -> float:
    """Time all texts: one call of the engine for each batch, as a service that gets them one after the other."""
    before = time.perf_counter()
    for start in range(0, len(texts), batch_size):
        engine(texts[start : start + batch_size], batch_size)
    return time.perf_counter() - before


def measure(without: Path, with_zero: Path, splits: Splits, work: Path) -> list[dict[str, Any]]:
    """Time both models in every runtime, in turn, at every batch size."""
    texts = list(splits.test)[:TEXTS]
    rows = []
    for runtime in RUNTIMES:
        folders = [export(model, splits, work / f"{model.name}-{runtime}", runtime) for model in (without, with_zero)]
        engines = [Engine.load(folder, threads=1) for folder in folders]
        for batch_size in BATCH_SIZES:
            for engine in engines:
                seconds(engine, texts[:32], batch_size)  # warm up
            timed = [[seconds(engine, texts, batch_size) for engine in engines] for _ in range(ROUNDS)]
            ratios = [old / new for old, new in timed]
            depths = [sum(row.depth for row in engine(texts)) / len(texts) for engine in engines]
            rows.append(
                {
                    "runtime": runtime,
                    "batch_size": batch_size,
                    "gain": round(median(ratios), 3),
                    "range": [round(min(ratios), 3), round(max(ratios), 3)],
                    "mean_depth": [round(depth, 3) for depth in depths],
                    "milliseconds": [round(1000 * min(times) / len(texts), 3) for times in zip(*timed, strict=True)],
                }
            )
    return rows


def table(results: dict[str, Any]) -> str:
    """Write the gains as the second table of docs/how-to/train.md."""
    lines = [
        "| task | runtime | mean depth without → with exit 0 | 1 at a time | batches of 32 |",
        "|---|---|---|---|---|",
    ]
    for task, result in results.items():
        for runtime in RUNTIMES:
            rows = [row for row in result.get("clock", ()) if row["runtime"] == runtime]
            if rows:
                depths = " → ".join(f"{depth:.2f}" for depth in rows[0]["mean_depth"])
                gains = [f"{row['gain']:.2f} × ({row['range'][0]:.2f} … {row['range'][1]:.2f})" for row in rows]
                lines.append("| " + " | ".join([task, runtime, depths, *gains]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Time every model that is named and keep what is known of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("tasks", nargs="+", metavar="NAME=MODEL,DATA")
    parser.add_argument("--limit", type=int, help="train exit 0 on at most this many texts")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    for task in arguments.tasks:
        name, places = task.split("=")
        folder, data = places.split(",")
        splits = load_splits(data, limit=arguments.limit)
        extended = add_exit_zero(folder, splits, arguments.work / f"{name}-zero")
        rows = measure(Path(folder), extended, splits, arguments.work)
        results = read_json(RESULTS) or {}
        results[name] = {**results[name], "clock": rows}
        write_json(RESULTS, results)
    print(table(results))


if __name__ == "__main__":
    main()
