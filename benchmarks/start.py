"""What a process pays before its first answer: seconds to import and to load, memory, and a very long text.

python benchmarks/start.py trec-bert

A model folder has its exports in trec-bert/onnx and trec-bert/onnx-int8, and is compared with plain transformers and
with full graphs in ONNX Runtime, which benchmarks/limits.py has written.

Everything is measured in fresh processes, in turn, and the best of several is kept: a file that is not in the cache of
the system, or a neighbour, only ever adds to it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import write_results
from exitpoll.models.folder import TOKENIZER

IMPORT = """
import json, time
before = time.perf_counter()
import exitpoll
print(json.dumps({"import_seconds": time.perf_counter() - before}))
"""
LOAD = """
import json, sys, time
import psutil
before = time.perf_counter()
from exitpoll import Engine
engine = Engine.load(sys.argv[1], threads=1)
loaded = time.perf_counter()
engine(["how far is it from here to there ?"] * 32, 8)
megabytes = psutil.Process().memory_info().rss / 2**20
text = "a word of a very long text " * (5_000_000 // 27)
started = time.perf_counter()
engine([text])
long = time.perf_counter() - started
print(json.dumps({"load_seconds": loaded - before, "megabytes": megabytes, "long_text_seconds": long}))
"""
PLAIN = """
import json, sys, time
import psutil
before = time.perf_counter()
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
torch.set_num_threads(1)
tokenizer, model = (kind.from_pretrained(sys.argv[1]) for kind in (AutoTokenizer, AutoModelForSequenceClassification))
loaded = time.perf_counter()
with torch.inference_mode():
    model(**tokenizer(["how far is it from here to there ?"] * 8, return_tensors="pt"))
megabytes = psutil.Process().memory_info().rss / 2**20
print(json.dumps({"load_seconds": loaded - before, "megabytes": megabytes}))
"""
GRAPH = """
import json, sys, time
import psutil
before = time.perf_counter()
import numpy as np
from onnxruntime import InferenceSession, SessionOptions
from tokenizers import Tokenizer
options = SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 3, 1
tokenizer, session = Tokenizer.from_file(sys.argv[2]), InferenceSession(sys.argv[1], options)
loaded = time.perf_counter()
encoded = tokenizer.encode_batch(["how far is it from here to there ?"] * 8)
columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
names = [tensor.name for tensor in session.get_inputs()]
session.run(None, {name: np.array([getattr(text, columns[name]) for text in encoded]) for name in names})
megabytes = psutil.Process().memory_info().rss / 2**20
print(json.dumps({"load_seconds": loaded - before, "megabytes": megabytes}))
"""
WEIGHTS = ("*.onnx", "model.safetensors")
KINDS = {"onnx": "float32", "onnx-int8": "int8"}
FIXED_MB, TIMES = 120, 1.5  # what an export may take: a fixed part, and so many times its size


def fresh(program: str, *arguments: str) -> dict[str, float]:
    """Run a program in a process of its own, and return what it prints."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def size_of(folder: Path) -> float:
    """Return the size of the graphs or weights of a folder, in MB."""
    return sum(path.stat().st_size for pattern in WEIGHTS for path in folder.glob(pattern)) / 2**20


def write_plain(model: Path, folder: Path) -> None:
    """Write a plain classifier of transformers with the same encoder; its weights do not matter."""
    from transformers import AutoModelForSequenceClassification

    from exitpoll import EarlyExitModel
    from exitpoll.models.tokenizer import load_tokenizer

    config = EarlyExitModel.from_pretrained(str(model)).config.encoder
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    load_tokenizer(str(model)).save_pretrained(folder)


def measure(model: Path, plain: Path, rounds: int) -> dict[str, Any]:
    """Measure loading a model folder in every runtime, and what a user would load instead."""
    exports = {name: model / name for name in KINDS if (model / name).is_dir()}
    graphs = {f"{name}, full graph": model / "limits" / f"whole-{KINDS[name]}.onnx" for name in exports}
    graphs = {name: graph for name, graph in graphs.items() if graph.exists()}
    best: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        runs = {name: fresh(LOAD, str(folder)) for name, folder in {"torch": model, **exports}.items()}
        runs["plain transformers"] = fresh(PLAIN, str(plain))
        runs |= {name: fresh(GRAPH, str(graph), str(model / TOKENIZER)) for name, graph in graphs.items()}
        _keep_least(best, runs)
    sizes = {"torch": size_of(model), "plain transformers": size_of(plain)}
    sizes |= {name: size_of(folder) for name, folder in exports.items()}
    sizes |= {name: graph.stat().st_size / 2**20 for name, graph in graphs.items()}
    for name, size in sizes.items():
        best[name]["file_megabytes"] = round(size, 1)
    for name in exports:
        best[name]["most_megabytes"] = round(FIXED_MB + TIMES * sizes[name], 1)
    return best


def _keep_least(best: dict[str, dict[str, float]], runs: dict[str, dict[str, float]]) -> None:
    """Keep the least of every figure."""
    for name, values in runs.items():
        least = best.setdefault(name, values)
        best[name] = {what: round(min(value, least[what]), 3) for what, value in values.items()}


def main() -> None:
    """Measure importing and some model folders, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    imports = [fresh(IMPORT)["import_seconds"] for _ in range(chosen.rounds)]
    measured = {}
    for model in chosen.models:
        with tempfile.TemporaryDirectory() as plain:
            write_plain(model, Path(plain))
            measured[model.name] = measure(model, Path(plain), chosen.rounds)
    content = {"rounds": chosen.rounds, "import_seconds": round(min(imports), 4), "models": measured}
    write_results("start", content)


if __name__ == "__main__":
    main()
