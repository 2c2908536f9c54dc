"""How close the engine comes to its limit in ONNX Runtime: a static graph of the same layers, cut at the mean depth.

python benchmarks/limits.py --task trec-bert data/trec --task mrpc-bert data/mrpc

Every way to run a model has a process of its own, and the ways are timed in turn. The time of a static graph of the
mean depth is interpolated between the depths below and above it. One text at a time is also compared with static graphs
each of which gets the texts that leave at its depth. Models without a policy or exports get them, with the
guarantee that at most 2 % of answers differ, and exits chosen by the clock. Results of other tasks are kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common import RESULTS, write_results
from exitpoll import Engine, Policy, calibrate, load_model
from exitpoll.data.batching import Text, batches, lengths_of, padded_columns, pick
from exitpoll.data.splits import Texts
from exitpoll.engine.inputs import read_texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.record import record_in_memory
from exitpoll.export.export import export_model
from exitpoll.export.graphs import export_graphs, random_texts, translate_whole
from exitpoll.export.join import join_parts
from exitpoll.export.quantize import quantize, with_int8_weights
from exitpoll.files import write_bytes
from exitpoll.models.folder import POLICY
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import load_tokenizer
from static_graph import join_static

Times = dict[str, dict[int, list[NDArray]]]  # seconds a text, by way and batch size, of every round: (calls, 2 clocks)

MAX_DISAGREEMENT = 0.02
KINDS = {"onnx": "float32", "onnx-int8": "int8"}
BATCH_SIZES = (1, 8, 32, 128)
SHORT = 32  # tokens of a short text
ALONE = 150  # texts that are timed one at a time: short ones, unless a task has too few of them
ENOUGH = 50


# ---- what is timed --------------------------------------------------------------------------------------------------


def prepare(model: Path, data: str) -> None:
    """Calibrate and export a model, and write the graphs that it is compared with, unless that has been done."""
    loaded = load_model(model)
    read = read_texts(loaded, data, "calibration")
    if not (model / POLICY).exists():
        trace = record_in_memory(loaded, read.texts, about=read.about)
        calibrate(trace, max_disagreement=MAX_DISAGREEMENT, exits="auto").save(model / POLICY)
    for kind in KINDS:
        if not (model / kind).exists():
            export_model(model, model / kind, int8=kind == "onnx-int8", texts=read.texts, about=read.about)
    work = model / "limits"
    if not work.exists():
        _write_graphs(model, work, read.texts)


def _write_graphs(model: Path, work: Path, texts: Texts) -> None:
    """Write parts, a graph that never exits early, static graphs of every depth, and the graph of other exporters."""
    network, tokenizer = EarlyExitModel.from_pretrained(model), load_tokenizer(model)
    parts = {precision: work / f"parts-{precision}" for precision in KINDS.values()}
    for folder in parts.values():
        folder.mkdir(parents=True)
    export_graphs(network, tokenizer, parts["float32"])
    quantize(parts["float32"], parts["int8"], texts)
    whole = work / "whole-float32.onnx"
    write_bytes(whole, translate_whole(network, ["input_ids", "token_type_ids"]).SerializeToString())
    write_bytes(work / "whole-int8.onnx", with_int8_weights(whole).SerializeToString())
    for precision, folder in parts.items():
        never = work / f"never-{precision}"
        never.mkdir()
        join_parts(folder, never, Policy(problem_type=network.config.problem_type), Texts(random_texts(tokenizer, 16)))
        for number, layer in enumerate(network.config.exit_layers):
            graph = join_static(folder, number).SerializeToString()
            write_bytes(work / f"static-{precision}-{layer}.onnx", graph)


@dataclass(frozen=True)
class Way:
    """One way to run a model: what a process of its own loads."""

    name: str
    kind: str  # "engine", "graph" or "torch"
    path: str
    model: str


def ways_of(model: Path, kind: str, depths: Sequence[float]) -> list[Way]:
    """List the ways to run a model in one runtime: the engine, static graphs of some depths, and others."""
    work, precision = model / "limits", KINDS[kind]
    exit_layers = Manifest.load(model / kind).exit_layers
    layers = {exit_layers[-1]}
    for depth in depths:
        layers.add(max(layer for layer in exit_layers if layer <= max(depth, exit_layers[0])))
        layers.add(min(layer for layer in exit_layers if layer >= depth))
    static = {f"static {layer}": f"static-{precision}-{layer}.onnx" for layer in sorted(layers)}
    graphs = {**static, "full graph": f"whole-{precision}.onnx"}
    return [
        Way("engine", "engine", str(model / kind), str(model)),
        Way("never exits", "engine", str(work / f"never-{precision}"), str(model)),
        *(Way(name, "graph", str(work / file), str(model / kind)) for name, file in graphs.items()),
        Way("plain transformers", "torch", str(model), str(model)),
    ]


def load(way: Way, threads: int) -> Callable[[Sequence[Text], int], object]:
    """Load a way to run a model: a function of texts and batch size."""
    if way.kind == "engine":
        return Engine.load(way.path, threads=threads, policy=None if way.name == "engine" else Policy())
    if way.kind == "torch":
        from exitpoll.benchmark.baselines import plain_transformers

        return plain_transformers(load_model(way.path, threads=threads, device="cpu"))
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, threads
    session = InferenceSession(way.path, options, providers=["CPUExecutionProvider"])
    names = [tensor.name for tensor in session.get_inputs()]
    loaded = load_model(way.model, threads=1)
    padding = Manifest.load(Path(way.model)).padding

    def run(texts: Sequence[Text], batch_size: int) -> None:
        tokens = loaded.tokenize(Texts.of(list(texts)))
        for rows in batches(lengths_of(tokens), batch_size):
            columns = padded_columns(pick(tokens, rows), padding)
            session.run(None, {name: columns[name] for name in names})

    return run


# ---- processes ------------------------------------------------------------------------------------------------------


def serve(pipe: Connection, way: Way, threads: int) -> None:
    """Load a way to run a model, and time it whenever texts and a batch size arrive."""
    run = load(way, threads)
    pipe.send("ready")
    while (job := pipe.recv()) is not None:
        texts, batch_size = job
        calls = [[text] for text in texts] if batch_size == 1 else [texts]
        clocks = [(time.perf_counter(), time.process_time())]
        for call in calls:
            run(call, batch_size)
            clocks.append((time.perf_counter(), time.process_time()))
        pipe.send(np.diff(clocks, axis=0) / len(calls[0]))  # (calls, 2)


def time_ways(ways: Sequence[Way], threads: int, jobs: Mapping[int, Sequence[Text]], rounds: int) -> Times:
    """Time all ways in turn, every one in a process of its own."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for way in ways:
        pipes[way.name], theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, way, threads), daemon=True))
        processes[-1].start()
    for pipe in pipes.values():
        pipe.recv()
    times: Times = {name: {size: [] for size in jobs} for name in pipes}
    for attempt in range(rounds + 1):
        for size, texts in jobs.items():
            for name, pipe in pipes.items():
                pipe.send((texts, size))
                seconds = pipe.recv()
                if attempt:  # the first round warms up
                    times[name][size].append(seconds)
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(None)
        process.join()
    return times


# ---- ratios ---------------------------------------------------------------------------------------------------------


def shares(times: Times, size: int, depths: NDArray, clock: int) -> dict[str, tuple[float, ...]]:
    """Compute ratios to the engine in every round: median, lowest, highest."""
    calls = {name: np.array([timed[:, clock] for timed in by_size[size]]) for name, by_size in times.items()}
    seconds = {name: timed.mean(axis=1) for name, timed in calls.items()}  # of (rounds, calls): (rounds,)
    static = {int(name.split()[1]): name for name in seconds if name.startswith("static")}
    depth, last = depths.mean(), max(static)
    below = max((layer for layer in static if layer <= depth), default=min(static))
    above = min((layer for layer in static if layer >= depth), default=last)
    part = (depth - below) / (above - below) if above > below else 0.0
    at_depth = (1 - part) * seconds[static[below]] + part * seconds[static[above]]
    ratios = {
        "share of static": at_depth / seconds["engine"],
        "never exits, share of full static": seconds[static[last]] / seconds["never exits"],
        "never exits, against the full graph": seconds["full graph"] / seconds["never exits"],
        "against the full graph": seconds["full graph"] / seconds["engine"],
        "against full static": seconds[static[last]] / seconds["engine"],
        "against plain transformers": seconds["plain transformers"] / seconds["engine"],
    }
    if size == 1:
        own = [calls[static[layer]][:, text] for text, layer in enumerate(depths)]
        ratios["share of static at own depths"] = np.mean(own, axis=0) / seconds["engine"]
    return {
        name: tuple(round(float(value), 3) for value in (statistics.median(values), min(values), max(values)))
        for name, values in ratios.items()
    }


def measure(model: Path, data: str, threads: int, texts: int, rounds: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Measure one task with one number of threads, in both runtimes."""
    results: dict[str, Any] = {}
    for kind in KINDS:
        engine = Engine.load(model / kind, threads=1)
        chosen = list(read_texts(engine.model, data, "test").texts)[:texts]
        tokens = lengths_of(engine.model.tokenize(Texts.of(chosen)))
        short = [text for text, length in zip(chosen, tokens, strict=True) if length <= SHORT]
        alone = (short if len(short) >= ENOUGH else chosen)[:ALONE]
        jobs: dict[int, Sequence[Text]] = {size: alone if size == 1 else chosen for size in sizes}
        depths = {size: np.array([row.depth for row in engine(some, 32)]) for size, some in jobs.items()}
        at_depths = [depths_of.mean() for depths_of in depths.values()] + [*depths.get(1, ())]
        times = time_ways(ways_of(model, kind, at_depths), threads, jobs, rounds)
        for size in jobs:
            depth = float(depths[size].mean())
            ratios = {"wall": shares(times, size, depths[size], 0), "cpu": shares(times, size, depths[size], 1)}
            results[f"{kind} {size}"] = {
                "kind": kind,
                "batch_size": size,
                "depth": round(depth, 3),
                "texts": len(jobs[size]),
                "policy": engine.policy.name,
                "exit_layers": list(engine.policy.asked(engine.runtime.exit_layers)),
                "mean_tokens": round(float(np.mean(tokens)), 1),
                "load": os.getloadavg()[0],
                **ratios,
            }
            print(Path(data).name, threads, kind, size, f"depth {depth:.2f}", ratios["wall"], ratios["cpu"], flush=True)
    return results


def main() -> None:
    """Run the benchmark of the tasks given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs=2, action="append", required=True, metavar=("MODEL", "DATA"))
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=list(BATCH_SIZES))
    chosen = parser.parse_args()
    path = RESULTS / "limits.json"
    tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"] if path.exists() else {}
    for model, data in chosen.task:
        prepare(Path(model), data)
        name = Path(model).name
        for threads in chosen.threads:
            measured = measure(Path(model), data, threads, chosen.texts, chosen.rounds, chosen.batch_sizes)
            tasks.setdefault(name, {}).setdefault(str(threads), {}).update(measured)
            write_results("limits", {"max_disagreement": MAX_DISAGREEMENT, "tasks": tasks})


if __name__ == "__main__":
    main()
