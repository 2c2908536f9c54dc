"""Where the time of one short text goes: layers, heads and decisions inside the graph, Python around it.

python benchmarks/one_text.py

A random encoder of 12 layers and 384, ten tokens, one thread. Texts leave behind fixed layers, by a policy that asks
five exits. Beside the self-exiting graph stand static graphs of the same layers, with one head and with the heads of
all exits that are asked on the way: what is left over is deciding. All are timed in turn, by the CPU time of their
process. Python is what the engine takes beside the call of the graph, and what it takes to tokenize and pad a text for
a static graph. Both grow with the layers that run: the weights that a call reads push Python out of the caches.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions

from common import make_encoder, make_texts, write_results
from exitpoll import Engine, Policy, load_model
from exitpoll.data.batching import padded_columns
from exitpoll.data.splits import Texts
from exitpoll.engine.exit_graph import Inputs
from exitpoll.engine.onnx_graph import OnnxGraph
from exitpoll.engine.runtime import LoadedModel
from exitpoll.export.graphs import export_graphs
from exitpoll.export.join import GRAPH, join_parts
from exitpoll.export.quantize import quantize
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import load_tokenizer
from static_graph import join_static

TOKENS = 10
ASKED = (1, 3, 4, 7, 12)  # layers of the exits that the policy asks
LABELS = list("abcdef")
ROUNDS, CALLS = 12, 40
RESULTS = ["exit_number", "logits", "label", "probability"]  # what the engine reads

Call = Callable[[], object]


def write_graphs(folder: Path) -> None:
    """Write the parts of a random model, in both precisions."""
    encoder = make_encoder(folder / "encoder")
    model, tokenizer = EarlyExitModel.from_encoder(str(encoder), labels=LABELS), load_tokenizer(encoder)
    for precision in ("float32", "int8"):
        (folder / precision).mkdir()
    export_graphs(model, tokenizer, folder / "float32")
    quantize(folder / "float32", folder / "int8", Texts(make_texts(64, TOKENS)))


def load_graph(content: bytes) -> InferenceSession:
    """Load a graph with one thread."""
    options = SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return InferenceSession(content, options, providers=["CPUExecutionProvider"])


def microseconds(calls: Mapping[str, Call]) -> dict[str, float]:
    """Time calls in turn: CPU time of one, the median over rounds."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for _ in range(3):
                call()
            before = time.process_time()
            for _ in range(CALLS):
                call()
            rounds[name].append(1e6 * (time.process_time() - before) / CALLS)
    return {name: statistics.median(seconds) for name, seconds in rounds.items()}


def time_graphs(parts: Path, tokens: Mapping[str, NDArray], exiting: InferenceSession) -> list[dict[str, float]]:
    """Time static graphs and the self-exiting graph, by the layer behind which the text leaves."""

    def call(session: InferenceSession, names: list[str] | None, feed: Mapping[str, NDArray]) -> Call:
        return lambda: session.run(names, feed)

    calls: dict[str, Call] = {}
    for layer in ASKED:
        before = [asked - 1 for asked in ASKED if asked < layer]
        levels = np.full(ASKED[-1], np.inf, dtype=np.float32)
        levels[layer - 1] = -np.inf
        static = load_graph(join_static(parts, layer - 1).SerializeToString())
        with_heads = load_graph(join_static(parts, layer - 1, before).SerializeToString())
        calls[f"{layer} static"] = call(static, None, tokens)
        calls[f"{layer} with_heads"] = call(with_heads, None, tokens)
        calls[f"{layer} exiting"] = call(exiting, RESULTS, {**tokens, str(Inputs.LEVELS): levels})
    timed = microseconds(calls)
    kinds = ("static", "with_heads", "exiting")
    return [{"layer": layer, **{kind: round(timed[f"{layer} {kind}"], 1) for kind in kinds}} for layer in ASKED]


def time_python(loaded: LoadedModel, static: InferenceSession, threshold: float) -> dict[str, float]:
    """Time what the engine, and the simplest code around a static graph, take beside the calls of their graphs."""
    runtime, texts, inside = loaded.runtime, make_texts(CALLS, TOKENS), [0.0]
    assert isinstance(runtime, OnnxGraph)
    engine = Engine(loaded, Policy("max_prob", threshold, exit_layers=ASKED))

    def timed(run: Callable) -> Callable:
        def call(*arguments: object) -> object:
            before = time.process_time()
            outputs = run(*arguments)
            inside[0] += time.process_time() - before
            return outputs

        return call

    run_exiting, run_static = runtime._graph.run, timed(static.run)

    def around_static(text: str) -> None:
        run_static(None, padded_columns(loaded.tokenize(Texts([text])), runtime.padding))

    def beside(call: Callable[[str], object]) -> float:
        inside[0], before = 0.0, time.process_time()
        for text in texts:
            call(text)
        return 1e6 * (time.process_time() - before - inside[0]) / len(texts)

    runtime._graph.run = timed(run_exiting)
    pairs = [(beside(lambda text: engine([text])), beside(around_static)) for _ in range(ROUNDS)][1:]
    runtime._graph.run = run_exiting
    own, simplest = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"engine": round(own, 1), "static": round(simplest, 1)}


def measure(folder: Path, precision: str) -> dict[str, object]:
    """Measure one precision."""
    parts, joined = folder / precision, folder / f"joined-{precision}"
    joined.mkdir()
    policy = Policy("max_prob", 0.9, exit_layers=ASKED)
    join_parts(parts, joined, policy, Texts(make_texts(16, TOKENS)))
    loaded = load_model(joined, threads=1)
    tokens = padded_columns(loaded.tokenize(Texts(make_texts(1, TOKENS))), {"input_ids": 0})
    shallow, deep = (load_graph(join_static(parts, layer - 1).SerializeToString()) for layer in (ASKED[0], ASKED[-1]))
    return {
        "leaving": time_graphs(parts, tokens, load_graph((joined / GRAPH).read_bytes())),
        "python": {
            str(ASKED[0]): time_python(loaded, shallow, threshold=-1.0),
            str(ASKED[-1]): time_python(loaded, deep, threshold=2.0),
        },
    }


def main() -> None:
    """Measure both precisions."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_graphs(folder)
        results = {precision: measure(folder, precision) for precision in ("float32", "int8")}
    write_results("one_text", {"asked": list(ASKED), "tokens": TOKENS, **results})


if __name__ == "__main__":
    main()
