"""Wall-clock time of the engine on trained models and real texts: `exitpoll bench` for several tasks, in one file.

Train a model for every task first; then

python benchmarks/engine.py --task trec-bert data/trec --task mrpc-bert data/mrpc

A model without policy or exports gets them: the guarantee that at most 2 % of answers differ, calibrated on the
calibration split for every runtime. Results of other tasks in the file are kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

from common import FIGURES, RESULTS, write_results
from engine_tables import KINDS, kept_table, limit_table, plain_table, short_table
from exitpoll import Policy, Texts, calibrate, evaluate, load_model
from exitpoll.benchmark.timing import Benchmark, benchmark, load_in_runtimes
from exitpoll.engine.inputs import read_texts
from exitpoll.engine.loading import find_folder
from exitpoll.engine.record import record, record_in_memory
from exitpoll.export.export import export_model
from exitpoll.models.folder import POLICY
from exitpoll.report.plots import draw_parts, save

MAX_DISAGREEMENT = 0.02
SHORT = 32  # tokens of a short text
ENOUGH = 100  # short texts for a benchmark of their own


def prepare(model: Path, data: str) -> None:
    """Calibrate and export a model, unless that has been done."""
    loaded = load_model(model)
    read = read_texts(loaded, data, "calibration")
    if not (model / POLICY).exists():
        with tempfile.TemporaryDirectory() as scratch:
            trace = record(loaded, read.texts, Path(scratch) / "trace", about=read.about)
            calibrate(trace, max_disagreement=MAX_DISAGREEMENT).save(model / POLICY)
    for kind in KINDS[1:]:
        if not (model / kind).exists():
            export_model(str(model), model / kind, int8=kind == "onnx-int8", texts=read.texts, about=read.about)


def scores(model: Path, data: str) -> dict[str, dict[str, str | float | None]]:
    """Return the scores of every runtime on the test split: with exits, with all layers, and of a static model."""
    by_runtime: dict[str, dict[str, str | float | None]] = {}
    for kind in KINDS:
        loaded = load_model(model, kind)
        read = read_texts(loaded, data, "test")
        trace = record_in_memory(loaded, read.texts, about=read.about)
        policy = Policy.load(find_folder(model, kind) / POLICY)
        rows = {row.name: row for row in evaluate(trace, policy).rows}
        last, speedup = trace.exit_layers[-1], rows["policy"].speedup
        static_depth = round(last / speedup)
        by_runtime[kind] = {
            "metric": trace.metric,
            "with_exits": rows["policy"].score.value,
            "all_layers": rows["full model"].score.value,
            "static": rows[f"layer {static_depth}" if static_depth < last else "full model"].score.value,
            "speedup_in_layers": speedup,
            "strategy": policy.name,
            "texts": len(trace.logits),
            "differs": rows["policy"].differs,
            "certified_speedup": None if policy.certificate is None else policy.certificate.speedup,
        }
    return by_runtime


def measure(model: Path, data: str, texts: int, rounds: int, *, compiled: bool) -> tuple[Benchmark, dict[str, object]]:
    """Time one task, and its short texts once more one at a time."""
    models = load_in_runtimes(model, threads=torch.get_num_threads())
    chosen = list(read_texts(models[0].loaded, data, "test").texts)[:texts]
    result = benchmark(models, chosen, rounds=rounds, compiled=compiled)
    tokens = models[0].loaded.tokenize(Texts.of(chosen))["input_ids"]
    short = [text for text, ids in zip(chosen, tokens, strict=True) if len(ids) <= SHORT]
    alone = benchmark(models, short, batch_sizes=[1], rounds=rounds) if len(short) >= ENOUGH else None
    return result, {} if alone is None else alone.to_dict()


def main() -> None:
    """Run the benchmark of the tasks given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs=2, action="append", required=True, metavar=("MODEL", "DATA"))
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", action="store_true", help="time torch.compile too")
    chosen = parser.parse_args()
    path = RESULTS / "engine.json"
    tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"] if path.exists() else {}
    for model, data in chosen.task:
        prepare(Path(model), data)
        result, short = measure(Path(model), data, chosen.texts, chosen.rounds, compiled=chosen.compiled)
        name = Path(data).name
        tasks[name] = {**result.to_dict(), "short_texts": short, "scores": scores(Path(model), data)}
        save(draw_parts(result), FIGURES / f"engine-{name}.png")
        write_results("engine", {"max_disagreement": MAX_DISAGREEMENT, "tasks": tasks})
    print(*(table(tasks) for table in (kept_table, limit_table, plain_table, short_table)), sep="\n\n")


if __name__ == "__main__":
    main()
