"""What Ray adds: to the engine in a `Predictor`, and to our server behind the proxy of Ray Serve.

python -m benchmarks.ray_overhead trec-bert/onnx data/trec

`Predictor` gets batches of 4,096 rows, in turn with the engine on the same texts, both with one thread. The server of
`exitpoll serve --workers 0` and one replica of Ray Serve get the same single requests, one after another, in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
from benchmarks.serving.servers import Server, running

from exitpoll import load_model
from exitpoll.cluster import Predictor, deployment
from exitpoll.cluster.connect import connected
from exitpoll.engine.inputs import read_texts
from exitpoll.files import write_json

ROWS = 4096  # of a batch
HERE = Path(__file__).parent
GENERATOR, RESULTS = HERE / "serving" / "generator.py", HERE / "results" / "ray_overhead.json"
PORT = 8765  # of Ray Serve


def compare_predictor(model: str, texts: Sequence[str], rounds: int) -> dict[str, object]:
    """Time batches with the predictor and with its engine, in turn."""
    predictor = Predictor(model)
    batch = {"text": np.array([texts[number % len(texts)] for number in range(ROWS)], dtype=object)}
    ways: dict[str, Callable[[], object]] = {
        "engine": lambda: predictor.engine(list(batch["text"]), 32),
        "predictor": lambda: predictor(batch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for attempt in range(rounds + 1):
        for name, run in ways.items():
            before = time.perf_counter()
            run()
            if attempt:  # the first round warms up
                seconds[name].append(time.perf_counter() - before)
    ratios = [alone / wrapped for alone, wrapped in zip(seconds["engine"], seconds["predictor"], strict=True)]
    return {"rows": ROWS, "predictor over engine": spread(ratios)}


def compare_proxy(model: str, texts: Sequence[str], rounds: int, requests: int) -> dict[str, object]:
    """Send single requests to our own server and to Ray Serve, in turn."""
    command = [sys.executable, "-m", "exitpoll", "serve", model, "--threads", "1", "--workers", "0", "--port", "PORT"]
    server = Server("serve", "exitpoll serve", command, "/v1/predict")
    found: dict[str, list[dict[str, float]]] = {"exitpoll serve": [], "Ray Serve": []}
    with tempfile.TemporaryDirectory() as folder, running(server, None) as process, ray_serve(model):
        bodies = server.bodies(texts, Path(folder) / "bodies.jsonl")
        for attempt in range(rounds + 1):
            for name, port in (("exitpoll serve", process.port), ("Ray Serve", PORT)):
                milliseconds = send(port, bodies, requests)
                if attempt:
                    found[name].append(milliseconds)
    medians = {
        name: {quantile: round(statistics.median(one[quantile] for one in rows), 2) for quantile in ("p50", "p99")}
        for name, rows in found.items()
    }
    added = [theirs["p50"] - ours["p50"] for ours, theirs in zip(*found.values(), strict=True)]
    return {"requests": requests, "milliseconds": medians, "the proxy adds, ms": spread(added)}


@contextmanager
def ray_serve(model: str) -> Iterator[None]:
    """Run one replica on a Ray of its own."""
    from ray import serve

    with connected("local", 2):
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        serve.run(deployment(model), name="benchmark", route_prefix="/")
        yield
        serve.shutdown()


def send(port: int, bodies: Path, requests: int) -> dict[str, float]:
    """Send requests one after another, and return quantiles of their latency in milliseconds."""
    command = [sys.executable, str(GENERATOR), "--port", str(port), "--bodies", str(bodies), "--closed", str(requests)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured = json.loads(done.stdout)
    if measured["answered"] != requests:
        raise SystemExit(f"only {measured['answered']} of {requests} requests were answered")
    return measured["milliseconds"]


def spread(values: Sequence[float]) -> list[float]:
    """Return median, smallest and largest."""
    return [round(pick(values), 3) for pick in (statistics.median, min, max)]


def main() -> None:
    """Measure both, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", help="a file, or a folder with a test split")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300)
    chosen = parser.parse_args()
    texts = [str(text) for text in read_texts(load_model(chosen.model), chosen.data, "test").texts]
    found = {
        "predictor": compare_predictor(chosen.model, texts, chosen.rounds),
        "proxy": compare_proxy(chosen.model, texts, chosen.rounds, chosen.requests),
    }
    versions = {name: version(name) for name in ("exitpoll", "onnxruntime", "ray")}
    write_json(RESULTS, {"versions": versions, **found})
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
