"""Compare servers on one model: capacity, latency at the same load, CPU time, and what HTTP adds.

python -m benchmarks.serving MODEL TEXTS [--runtime onnx] [--python PATH] [--infinity PATH]
python -m benchmarks.serving MODEL TEXTS --bursts | --at-once 16 | --pairs

python -m benchmarks.serving MODEL TEXTS --url tei=http://127.0.0.1:8080/predict

MODEL is a torch model folder with its policy; TEXTS has one text a line, or with --pairs two, separated by a tab.
Servers take turns in rounds. A server runs alone on the last core and the generator on the first. Every measurement is
kept in benchmarks/results/serving.json (serving_bursts.json, …) as soon as it is made: the same command continues after
an interruption, and does nothing once all is measured.
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

from benchmarks.serving.capacity import (
    LATE_MS,
    LIMITS,
    MOST_DRAIN,
    Load,
    Measured,
    attempt_seconds,
    find_capacity,
    in_time,
    latency_seconds,
    on_time,
)
from benchmarks.serving.servers import IN_PROCESS, Server, Text, running, servers

from exitpoll import Engine
from exitpoll.data.splits import Texts
from exitpoll.decide.policy import Policy
from exitpoll.engine.loading import load_model
from exitpoll.files import read_json, write_json

RESULTS = Path(__file__).parents[1] / "results"
SHARES = (0.3, 0.6, 0.9)  # of the capacity of `full`, at which latencies are compared
COMPARED = ("exits", "full", f"exits{IN_PROCESS}", f"full{IN_PROCESS}", "no refill")


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

    def __init__(self, chosen: argparse.Namespace, texts: list[Text], work: Path) -> None:
        """Prepare the servers."""
        self.chosen, self.texts, self.work = chosen, texts, work
        self.servers = servers(chosen.model, chosen.runtime, work, chosen.python, chosen.infinity, chosen.url)
        cores = sorted(os.sched_getaffinity(0))
        self.cores = (cores[-1], cores[0]) if len(cores) > 1 and not chosen.free else (None, None)

    def load(self, server: Server, port: int) -> Load:
        """Return the load of a server."""
        bodies = server.bodies(self.texts, self.work / "bodies.jsonl", self.chosen.at_once)
        return Load(bodies, server.path, port, self.chosen.seconds, self.cores[1], self.chosen.bursts)

    def capacity(self, name: str, limit_ms: float, request_ms: float, first: float) -> Measured:
        """Find the capacity of a server, with all attempts and the CPU time of a request there."""
        server = self.servers[name]
        attempts: list[Measured] = []
        with running(server, self.cores[0]) as process:
            load = self.load(server, process.port)
            load.one_by_one(30)  # warm up

            def send(rate: float, late: int) -> Measured:
                before = process.cpu_seconds()
                seconds = attempt_seconds(self.chosen.seconds, limit_ms)
                measured = load.at(rate, seed=len(attempts) + 100 * late, seconds=seconds)
                spent = process.cpu_seconds() - before
                return {**measured, "server_cpu_ms": round(1000 * spent / measured["sent"], 3)}

            def attempt(rate: float) -> bool:
                attempts.append(on_time(partial(send, rate)))
                return in_time(attempts[-1], limit_ms, request_ms)

            found = find_capacity(attempt, first, self.chosen.precision)
        late = sum(measured["late_runs"] for measured in attempts)
        return {"capacity": round(found, 2), "late_runs": late, "attempts": attempts}

    def latencies(self, name: str, rates: dict[str, float]) -> dict[str, Measured]:
        """Measure the latency of a server at several rates."""
        server = self.servers[name]
        with running(server, self.cores[0]) as process:
            load = self.load(server, process.port)
            load.one_by_one(30)

            def send(rate: float, late: int) -> Measured:
                return load.at(rate, seed=7 + late, seconds=latency_seconds(self.chosen.seconds, rate))

            return {share: on_time(partial(send, rate)) for share, rate in rates.items()}

    def idle(self, name: str) -> Measured:
        """Measure single requests on an idle server."""
        server = self.servers[name]
        with running(server, self.cores[0]) as process:
            load = self.load(server, process.port)
            load.one_by_one(100)
            before = process.cpu_seconds(), process.front_cpu_seconds()
            measured = load.one_by_one(self.chosen.singles)
            after = process.cpu_seconds(), process.front_cpu_seconds()
            spent = [round(1000 * (new - old) / measured["sent"], 3) for old, new in zip(before, after, strict=True)]
            return {**measured, "server_cpu_ms": spent[0], "front_cpu_ms": spent[1]}


def time_engine(engine: Engine, texts: list[Text], count: int) -> Measured:
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


def in_process(chosen: argparse.Namespace, texts: list[Text], core: int | None) -> dict[str, Any]:
    """Time the engine on single texts, with exits and without, on the core of the servers."""
    allowed = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        engine = Engine.load(chosen.model, chosen.runtime, threads=1)
        never = Policy(problem_type=engine.model.runtime.problem_type)
        lengths = [len(ids) for ids in engine.model.tokenize(Texts.of(texts[:200]))["input_ids"]]
        return {
            "exits": time_engine(engine, texts, chosen.singles),
            "full": time_engine(Engine(engine.model, never), texts, chosen.singles),
            "layers": engine.model.runtime.exit_layers[-1],
            "mean_tokens": round(statistics.fmean(lengths), 1),
        }
    finally:
        os.sched_setaffinity(0, allowed)


def write_full_graph(model: str, work: Path, text: Text, *, classifier: bool) -> None:
    """Write the full model as one ONNX graph with its tokenizer; for Infinity, as a classifier of the same size."""
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

    from exitpoll.engine.torch_runtime import TorchRuntime
    from exitpoll.export.graphs import translate_whole
    from exitpoll.models.tokenizer import load_tokenizer

    loaded = load_model(model)
    assert isinstance(loaded.runtime, TorchRuntime)
    network, tokenizer = loaded.runtime.model, load_tokenizer(model)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    names = list(loaded.tokenize(Texts.of([text])))
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


def compare(chosen: argparse.Namespace, texts: list[Text], kept: Kept, work: Path) -> None:
    """Measure whatever is not measured yet."""
    comparison = Comparison(chosen, texts, work)
    alone = kept.get("in process", lambda: in_process(chosen, texts, comparison.cores[0]))
    for mode in ("", IN_PROCESS):
        kept.get(f"idle{mode}", partial(comparison.idle, f"exits{mode}"))
    request_ms = chosen.at_once * alone["full"]["p50"]
    limit_ms = chosen.patience * request_ms
    kept.content["limit_ms"] = round(limit_ms, 3)
    busy = (250 if chosen.bursts else 700) / chosen.at_once
    guesses = dict.fromkeys(comparison.servers, busy / alone["full"]["p50"])
    guesses |= dict.fromkeys(("exits", f"exits{IN_PROCESS}", "no refill"), 0.85 * busy / alone["exits"]["p50"])
    for turn in range(chosen.rounds):
        names = list(comparison.servers)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            key = f"round {turn + 1}, {name}"
            found = kept.get(key, partial(comparison.capacity, name, limit_ms, request_ms, guesses[name]))
            guesses[name] = found["capacity"] or guesses[name] / 4
        full = kept.content["measured"][f"round {turn + 1}, full"]["capacity"]
        if not full:
            raise SystemExit("at full depth no rate was kept up with: measure again with --fresh on a quiet machine")
        rates = {str(share): round(share * full, 2) for share in SHARES}
        for name in COMPARED:
            key = f"round {turn + 1}, {name}, latency"
            kept.get(key, partial(comparison.latencies, name, rates))


def read_texts(path: Path, *, pairs: bool) -> list[Text]:
    """Read texts, one a line, or pairs, separated by a tab."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not pairs:
        return [*lines]
    wrong = next((number for number, line in enumerate(lines, start=1) if line.count("\t") != 1), None)
    if wrong is not None:
        raise SystemExit(f"line {wrong} of {path} is not two texts, separated by a tab")
    return [(first, second) for first, _, second in (line.partition("\t") for line in lines)]


def variant_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return in what the load is unusual: nothing, for single texts at random times."""
    bursts = {"arrivals": "bursts"} if chosen.bursts else {}
    several = {"texts_a_request": chosen.at_once} if chosen.at_once > 1 else {}
    return {**bursts, **several, **({"pairs": True} if chosen.pairs else {})}


def path_of(chosen: argparse.Namespace) -> Path:
    """Return where results are kept: a file for every kind of load."""
    words = ["bursts"] * chosen.bursts + [f"{chosen.at_once}_texts"] * (chosen.at_once > 1) + ["pairs"] * chosen.pairs
    return chosen.out or RESULTS / f"{'_'.join(['serving', *words])}.json"


def main() -> None:
    """Compare servers on one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, help="one text a line")
    parser.add_argument("--pairs", action="store_true", help="TEXTS has two texts a line, separated by a tab")
    parser.add_argument("--bursts", action="store_true", help="requests come in bursts, at 4 times the mean rate")
    parser.add_argument("--at-once", type=int, default=1, help="texts in a request")
    parser.add_argument("--runtime", help="of exitpoll: torch, onnx, onnx-int8")
    parser.add_argument("--python", help="a Python with litserve, onnxruntime and tokenizers")
    parser.add_argument("--infinity", help="the program infinity_emb")
    parser.add_argument(
        "--url", action="append", default=[], help="a server that runs already: tei=http://127.0.0.1:8080/predict"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one attempt")
    parser.add_argument("--precision", type=float, default=0.06)
    parser.add_argument(
        "--patience", type=float, default=10.0, help="times a text at full depth within which 99 %% must be answered"
    )
    parser.add_argument("--singles", type=int, default=400, help="texts timed one by one")
    parser.add_argument("--free", action="store_true", help="do not bind servers and generator to cores")
    parser.add_argument("--fresh", action="store_true", help="discard what was measured")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.at_once < 1:
        parser.error("--at-once must be 1 or more")
    if chosen.pairs and chosen.infinity:
        parser.error("Infinity classifies single texts: leave out --infinity or --pairs")
    if chosen.url and (chosen.pairs or chosen.at_once > 1):
        parser.error("servers with --url are sent one text at a time: leave out --pairs and --at-once")
    texts = read_texts(chosen.texts, pairs=chosen.pairs)
    setting = {
        "model": Path(chosen.model).name,
        "runtime": chosen.runtime or "torch",
        "texts": len(texts),
        "seconds": chosen.seconds,
        "patience": chosen.patience,
        "pinned": not chosen.free,
        "versions": {name: version(name) for name in ("exitpoll", "onnxruntime", "uvicorn", "fastapi")},
        "others": [*(name for name in ("python", "infinity") if getattr(chosen, name)), *chosen.url],
        "late_ms": LATE_MS,
        "drain_seconds": MOST_DRAIN,
        "limits_an_attempt": LIMITS,
        **variant_of(chosen),
    }
    kept = Kept(path_of(chosen), setting, fresh=chosen.fresh)
    with tempfile.TemporaryDirectory() as work:
        write_full_graph(chosen.model, Path(work), texts[0], classifier=chosen.infinity is not None)
        compare(chosen, texts, kept, Path(work))


if __name__ == "__main__":
    main()
