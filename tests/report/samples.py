"""What reports are tested on: exits that get better with depth, and texts that would break a careless page."""

from __future__ import annotations

import numpy as np

from exitpoll import Policy, Trace
from exitpoll.benchmark.timing import Benchmark, Breakdown, Timing
from exitpoll.report.html import build_report

LAYERS = (1, 2, 4)
NAMES = ["bad", "good"]
PLAIN = {"milliseconds": 2.0, "depth": 4.0, "against_plain": 1.0, "against_full": 1.0, "of_layers": 1.0}


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
    """A benchmark of one runtime at two batch sizes."""
    ways = ("plain transformers", "engine, all layers", "engine", "static")
    timings = [Timing("torch", way, size, **PLAIN) for way in ways for size in (1, 32)]
    parts = {"layers": 1.0, "heads": 0.1, "other": 0.1}
    return Benchmark(10, 12.0, 2, 4, timings, [Breakdown("torch", size, parts) for size in (1, 32)])


def report(problem_type="single_label_classification", timed=None):
    """What a report on the example shows."""
    trace, texts = example(problem_type=problem_type)
    policy = Policy("patience", 1.0) if problem_type == "regression" else Policy("max_prob", 0.9)
    policy = Policy(policy.strategy, policy.threshold, problem_type=problem_type)
    names = ["value"] if problem_type == "regression" else NAMES
    return build_report("toy model", names, policy, trace, texts, notes=["a note"], benchmark=timed)
