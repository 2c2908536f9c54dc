"""Compare servers on one model: capacity, latency at the same load, CPU time, and what HTTP adds.

python -m benchmarks.serving MODEL TEXTS [--runtime onnx] [--python PATH] [--infinity PATH]

MODEL is a torch model folder with its policy; TEXTS has one text a line. Servers take turns in rounds. A server runs
alone on the last core and the generator on the first. Every measurement is kept in benchmarks/results/serving.json as
soon as it is made: the same command continues after an interruption, and does nothing once all is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.serving.capacity import LATE_MS, Load, Measured, find_capacity, in_time
from benchmarks.serving.servers import Server, running, servers

from exitpoll import Engine
from exitpoll.data.splits import Texts
from exitpoll.decide.policy import Policy
from exitpoll.engine.loading import load_model
from exitpoll.files import read_json, write_json

RESULT = Path(__file__).parents[1] / "results" / "serving.json"
SHARES = (0.3, 0.6, 0.9)  # of the capacity of `full`, at which latencies are compared
COMPARED = ("exits", "full", "no refill")


class Kept:
    """Measurements by name, written as soon as they are made."""

    def __init__(self, path: Path, setting: dict[str, Any], *, fresh: bool) -> None:
        """Continue with what was measured in the same setting."""
        earlier = {} if fresh else read_json(path) or {}
        same = earlier.get("setting") == setting
        self.path = path
        self.content: dict[str, Any] = earlier if same else {"setting": setting, "measured": {}}

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return a measurement, made now or before."""
        measured = self.content["measured"]
        if name not in measured:
            measured[name] = measure()
            write_json(self.path, self.content)
            print(f"{name}: {json.dumps(measured[name])[:200]}", flush=True)
        return measured[name]


class Comparison:
    """Measures servers in turn."""

    def __init__(self, chosen: argparse.Namespace, texts: list[str], work: Path) -> None:
        """Prepare the servers."""
        self.chosen, self.texts, self.work = chosen, texts, work
        self.servers = servers(chosen.model, chosen.runtime, work, chosen.python, chosen.infinity)
        cores = sorted(os.sched_getaffinity(0))
        self.cores = (cores[-1], cores[0]) if len(cores) > 1 and not chosen.free else (None, None)

    def load(self, server: Server, port: int) -> Load:
        """Return the load of a server."""
        bodies = server.bodies(self.texts, self.work / "bodies.jsonl")
        return Load(bodies, server.path, port, self.chosen.seconds, self.cores[1])

    def capacity(self, name: str, limit_ms: float, first: float) -> Measured:
        """Find the capacity of a server, with all attempts and the CPU time of a request there."""
        server = self.servers[name]
        attempts: list[Measured] = []
        with running(server, self.cores[0]) as process:
            load = self.load(server, process.port)
            load.one_by_one(30)  # warm up

            def attempt(rate: float) -> bool:
                before = process.cpu_seconds()
                measured = load.at(rate, seed=len(attempts))
                spent = process.cpu_seconds() - before
                attempts.append({**measured, "server_cpu_ms": round(1000 * spent / measured["sent"], 3)})
                return in_time(measured, limit_ms)

            found = find_capacity(attempt, first, self.chosen.precision)
        late = sum(measured["lag_p99_ms"] > LATE_MS for measured in attempts)
        return {"capacity": round(found, 2), "late_attempts": late, "attempts": attempts}

    def latencies(self, name: str, rates: dict[str, float]) -> dict[str, Measured]:
        """Measure the latency of a server at several rates."""
        server = self.servers[name]
        with running(server, self.cores[0]) as process:
            load = self.load(server, process.port)
            load.one_by_one(30)
            return {share: load.at(rate, seed=7) for share, rate in rates.items()}

    def idle(self) -> Measured:
        """Measure single requests on an idle server."""
        server = self.servers["exits"]
        with running(server, self.cores[0]) as process:
            load = self.load(server, process.port)
            load.one_by_one(100)
            before = process.cpu_seconds()
            measured = load.one_by_one(self.chosen.singles)
            spent = process.cpu_seconds() - before
            return {**measured, "server_cpu_ms": round(1000 * spent / measured["sent"], 3)}


def time_engine(engine: Engine, texts: list[str], count: int) -> Measured:
    """Time single texts in this process: milliseconds of the clock and of the CPU."""
    for text in texts[:20]:
        engine([text])
    walls, cpu = [], time.process_time()
    for number in range(count):
        before = time.perf_counter()
        engine([texts[number % len(texts)]])
        walls.append(1000 * (time.perf_counter() - before))
    ordered = sorted(walls)
    return {
        "mean": round(statistics.fmean(walls), 3),
        "p50": round(ordered[len(ordered) // 2], 3),
        "p99": round(ordered[int(0.99 * len(ordered))], 3),
        "cpu": round(1000 * (time.process_time() - cpu) / count, 3),
    }


def in_process(chosen: argparse.Namespace, texts: list[str], core: int | None) -> dict[str, Any]:
    """Time the engine on single texts, with exits and without, on the core of the servers."""
    allowed = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        engine = Engine.load(chosen.model, chosen.runtime, threads=1)
        never = Policy(problem_type=engine.model.runtime.problem_type)
        lengths = [len(ids) for ids in engine.model.tokenize(Texts(texts[:200]))["input_ids"]]
        return {
            "exits": time_engine(engine, texts, chosen.singles),
            "full": time_engine(Engine(engine.model, never), texts, chosen.singles),
            "layers": engine.model.runtime.exit_layers[-1],
            "mean_tokens": round(statistics.fmean(lengths), 1),
        }
    finally:
        os.sched_setaffinity(0, allowed)


def write_full_graph(model: str, work: Path, *, classifier: bool) -> None:
    """Write the full model as one ONNX graph with its tokenizer; for Infinity, as a classifier of the same size."""
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

    from exitpoll.engine.torch_runtime import TorchRuntime
    from exitpoll.export.graphs import translate_whole
    from exitpoll.models.tokenizer import load_tokenizer

    loaded = load_model(model)
    assert isinstance(loaded.runtime, TorchRuntime)
    network, tokenizer = loaded.runtime.model, load_tokenizer(model)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    names = list(loaded.tokenize(Texts(["a"])))
    (work / "full.onnx").write_bytes(translate_whole(network, names).SerializeToString())
    tokenizer.save_pretrained(work)
    settings = {
        "labels": list(loaded.label_names),
        "max_length": network.config.max_length,
        "padding": tokenizer.pad_token_id,
    }
    write_json(work / "full.json", settings)
    if classifier:
        config = network.config.encoder
        config.num_labels = len(loaded.label_names)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(work / "classifier")
        tokenizer.save_pretrained(work / "classifier")


def compare(chosen: argparse.Namespace, texts: list[str], kept: Kept, work: Path) -> None:
    """Measure whatever is not measured yet."""
    comparison = Comparison(chosen, texts, work)
    alone = kept.get("in process", lambda: in_process(chosen, texts, comparison.cores[0]))
    kept.get("idle", comparison.idle)
    limit_ms = chosen.patience * alone["full"]["p50"]
    kept.content["limit_ms"] = round(limit_ms, 3)
    guesses = dict.fromkeys(comparison.servers, 700 / alone["full"]["p50"])
    guesses["exits"] = guesses["no refill"] = 600 / alone["exits"]["p50"]
    for turn in range(chosen.rounds):
        names = list(comparison.servers)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            key = f"round {turn + 1}, {name}"
            found = kept.get(key, partial(comparison.capacity, name, limit_ms, guesses[name]))
            guesses[name] = found["capacity"] or guesses[name] / 4
        full = kept.content["measured"][f"round {turn + 1}, full"]["capacity"]
        if not full:
            raise SystemExit("at full depth no rate was kept up with: measure again with --fresh on a quiet machine")
        rates = {str(share): round(share * full, 2) for share in SHARES}
        for name in COMPARED:
            key = f"round {turn + 1}, {name}, latency"
            kept.get(key, partial(comparison.latencies, name, rates))


def main() -> None:
    """Compare servers on one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, help="one text a line")
    parser.add_argument("--runtime", help="of exitpoll: torch, onnx, onnx-int8")
    parser.add_argument("--python", help="a Python with litserve, onnxruntime and tokenizers")
    parser.add_argument("--infinity", help="the program infinity_emb")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one attempt")
    parser.add_argument("--precision", type=float, default=0.06)
    parser.add_argument(
        "--patience", type=float, default=10.0, help="times a text at full depth within which 99 %% must be answered"
    )
    parser.add_argument("--singles", type=int, default=400, help="texts timed one by one")
    parser.add_argument("--free", action="store_true", help="do not bind servers and generator to cores")
    parser.add_argument("--fresh", action="store_true", help="discard what was measured")
    parser.add_argument("--out", type=Path, default=RESULT)
    chosen = parser.parse_args()
    texts = [line for line in chosen.texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    setting = {
        "model": Path(chosen.model).name,
        "runtime": chosen.runtime or "torch",
        "texts": len(texts),
        "seconds": chosen.seconds,
        "patience": chosen.patience,
        "pinned": not chosen.free,
        "versions": {name: version(name) for name in ("exitpoll", "onnxruntime", "uvicorn", "fastapi")},
        "others": [name for name in ("python", "infinity") if getattr(chosen, name)],
        "late_ms": LATE_MS,
    }
    kept = Kept(chosen.out, setting, fresh=chosen.fresh)
    with tempfile.TemporaryDirectory() as work:
        write_full_graph(chosen.model, Path(work), classifier=chosen.infinity is not None)
        compare(chosen, texts, kept, Path(work))


if __name__ == "__main__":
    main()
