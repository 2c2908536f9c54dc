"""What reports are tested on: exits that get better with depth, and texts that would break a careless page."""

from __future__ import annotations

import numpy as np

from exitpoll import Policy, Trace
from exitpoll.benchmark.parts import Breakdown
from exitpoll.benchmark.timing import Benchmark, Timing, Way
from exitpoll.report.html import build_report

LAYERS = (1, 2, 4)
NAMES = ["bad", "good"]


def example(texts=120, problem_type="single_label_classification"):
    """A trace of texts with labels, and the texts."""
    chance = np.random.default_rng(0)
    labels = chance.integers(0, 2, size=texts)
    right = np.where(labels == 1, 1.0, -1.0)[:, None]
    lean = right * np.array([0.4, 0.8, 1.5]) + chance.normal(size=(texts, 3))
    logits = np.stack([-lean, lean], axis=-1)
    about = {"problem_type": problem_type, "metric": "accuracy", "data": "toy", "split": "test", "runtime": "torch"}
    if problem_type == "multi_label_classification":
        labels, about["metric"] = np.stack([1 - labels, labels], axis=1), "micro_f1"
    if problem_type == "regression":
        logits, labels, about["metric"] = lean[..., None], labels.astype(float), "r2"
    words = ["</script><script>alert(1)</script>", "a & b <i>", "plain", "x" * 1000]
    given = [f"{words[number % 4]} {number}" for number in range(texts)]
    return Trace(logits, labels, LAYERS, about), given


def benchmark():
    """A benchmark of two runtimes at two batch sizes: ONNX doubles the speed, and exits add to it."""
    milliseconds = {
        ("torch", Way.PLAIN): 2.0,
        ("torch", Way.FULL_DEPTH): 2.5,
        ("torch", Way.ENGINE): 1.25,
        ("torch", Way.STATIC): 1.0,
        ("onnx", Way.SINGLE_GRAPH): 1.0,
        ("onnx", Way.FULL_DEPTH): 1.25,
        ("onnx", Way.ENGINE): 0.8,
    }
    timings = [
        Timing(runtime, way, size, value, 4.0, 2.0 / value, 1.0, 1.0, (1.5 * value, value))
        for size in (1, 32)
        for (runtime, way), value in milliseconds.items()
    ]
    parts = {"layers": 0.9, "heads": 0.1, "other": 0.1}  # of a slower run
    breakdowns = [Breakdown(runtime, size, parts) for runtime in ("torch", "onnx") for size in (1, 32)]
    return Benchmark(10, 12.0, 2, 4, timings, breakdowns)


def report(problem_type="single_label_classification", timed=None, labelled=True, policy=None, **fields):
    """What a report on the example shows."""
    trace, texts = example(problem_type=problem_type)
    if not labelled:
        trace = Trace(trace.logits, None, LAYERS, trace.about)
    strategy, threshold = ("patience", 1.0) if problem_type == "regression" else ("max_prob", 0.9)
    policy = policy or Policy(strategy, threshold, problem_type=problem_type)
    names = ["value"] if problem_type == "regression" else NAMES
    return build_report("toy model", names, policy, trace, texts, notes=["a note"], benchmark=timed, **fields)
