"""Does an exit before the first layer pay: certified speed-up with it and without, on trained models.

Adds exit 0 to models that are trained already, whose encoder and other heads stay as they are, with several seeds;
calibrates at most 2 % of answers that differ from the full model's, and measures that on the test split.

    python experiments/exit_zero.py trec=trec-model,trec-data mrpc=…

Models come from `exitpoll train`, on the same data. Writes experiments/results/exit_zero.json.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from transformers import set_seed

from exitpoll import EarlyExitModel, Splits, Texts, Trace, TrainingSettings, calibrate, load_splits, train
from exitpoll.data.batching import batches, lengths_of, pick
from exitpoll.decide.analysis import static_exit
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.runtime import LoadedModel
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.files import read_json, write_json
from exitpoll.models.tokenizer import load_tokenizer

RESULTS = Path(__file__).parent / "results" / "exit_zero.json"
MAX_DISAGREEMENT = 0.02
SEEDS = (0, 1, 2)
KINDS = ("embeddings", "ngrams")
WITHOUT = "none"


def measure(folder: str, splits: Splits) -> dict[str, Any]:
    """Measure one model: without exit 0, and with each kind of it, for every seed."""
    model, tokenizer = EarlyExitModel.from_pretrained(folder), load_tokenizer(folder)
    loaded, about = loaded_model(model, tokenizer), {"metric": splits.metric}
    held_out = (splits.calibration, splits.test)
    traces = [record_in_memory(loaded, texts, about=about) for texts in held_out]
    rows: list[dict[str, Any]] = [{"exit_zero": WITHOUT, **outcome(*traces)}]
    for kind in KINDS:
        for seed in SEEDS:
            extended = train_exit_zero(model, folder, splits, kind, seed)
            both = [with_exit_zero(trace, extended, texts) for trace, texts in zip(traces, held_out, strict=True)]
            rows.append({"exit_zero": kind, "seed": seed, **outcome(*both)})
    test = traces[1]
    return {
        "metric": splits.metric,
        "layers": model.config.exit_layers[-1],
        "texts": [len(splits.train), len(splits.calibration), len(splits.test)],
        "full_score": round(static_exit(test, -1).score(splits.metric), 5),
        "layer_1_score": round(static_exit(test, 0).score(splits.metric), 5),
        "rows": rows,
    }


def train_exit_zero(model: EarlyExitModel, folder: str, splits: Splits, kind: str, seed: int) -> LoadedModel:
    """Train exit 0 on a copy of the model."""
    set_seed(seed)
    extended, tokenizer = model.with_exit_zero(kind), load_tokenizer(folder)
    settings = TrainingSettings(schedule="exit-zero", seed=seed)
    with tempfile.TemporaryDirectory() as scratch:
        train(extended, tokenizer, splits, Path(scratch) / "model", settings)
    return loaded_model(extended, tokenizer)


def with_exit_zero(trace: Trace, extended: LoadedModel, texts: Texts) -> Trace:
    """Return a trace with exit 0: the other exits have the same logits as before."""
    tokens, runtime = extended.tokenize(texts), extended.runtime
    first = np.zeros_like(trace.logits[:, :1])  # (texts, 1, classes)
    for rows in batches(lengths_of(tokens), 64):
        first[rows, 0] = runtime.logits_at(runtime.embed(pick(tokens, rows)), 0)
    return replace(trace, logits=np.concatenate([first, trace.logits], axis=1), exit_layers=(0, *trace.exit_layers))


def outcome(calibration: Trace, test: Trace) -> dict[str, Any]:
    """Calibrate, and measure what was guaranteed on the test split."""
    policy = calibrate(calibration, max_disagreement=MAX_DISAGREEMENT)
    decisions, full, certificate = policy.decide(test), static_exit(test, -1), policy.certificate
    assert certificate is not None
    found = {
        "policy": policy.name,
        "met": certificate.met,
        "certified_speedup": certificate.speedup,
        "test_speedup": round(decisions.speedup, 4),
        "test_disagreement": round(float((decisions.answer != full.answer).mean()), 5),
        "test_score": round(decisions.score(test.metric), 5),
    }
    if test.exit_layers[0] == 0:
        found["exit_0_score"] = round(static_exit(test, 0).score(test.metric), 5)
        found["left_at_0"] = round(float((decisions.depth == 0).mean()), 5)
    return found


def table(results: dict[str, Any]) -> str:
    """Write the results as the table of docs/how-to/train.md."""
    lines = [
        "| task | exit 0 reads | score at exit 0 | certified speed-up | on test | differing answers on test | "
        "texts that leave at 0 |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, result in results.items():
        for kind in (WITHOUT, *KINDS):
            rows = [row for row in result["rows"] if row["exit_zero"] == kind]
            zero = ["–", "–"] if kind == WITHOUT else [_percent(rows, "exit_0_score"), _percent(rows, "left_at_0")]
            speeds = [_range(rows, name) for name in ("certified_speedup", "test_speedup")]
            cells = [f"{task} ({100 * result['full_score']:.1f})", "no exit 0" if kind == WITHOUT else kind, zero[0]]
            lines.append("| " + " | ".join([*cells, *speeds, _percent(rows, "test_disagreement"), zero[1]]) + " |")
    return "\n".join(lines)


def _percent(rows: list[dict[str, Any]], name: str) -> str:
    """Write the mean over seeds, in %."""
    return f"{100 * mean(row[name] for row in rows):.1f} %"


def _range(rows: list[dict[str, Any]], name: str) -> str:
    """Write the mean speed-up over seeds, with the lowest and the highest."""
    values = [row[name] for row in rows]
    spread = f" ({min(values):.2f} … {max(values):.2f})" if len(values) > 1 else ""
    return f"{mean(values):.2f} ×{spread}"


def main() -> None:
    """Measure every model that is named and keep what is known of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", metavar="NAME=MODEL,DATA")
    parser.add_argument("--limit", type=int, help="train exit 0 on at most this many texts")
    arguments = parser.parse_args()
    torch.set_flush_denormal(True)
    results = read_json(RESULTS) or {}
    for task in arguments.tasks:
        name, places = task.split("=")
        folder, data = places.split(",")
        known = {key: value for key, value in results.get(name, {}).items() if key == "clock"}  # of exit_zero_clock.py
        results[name] = {**measure(folder, load_splits(data, limit=arguments.limit)), **known}
        write_json(RESULTS, results)
    print(table(results))


if __name__ == "__main__":
    main()
