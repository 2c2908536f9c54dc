"""Baselines do the work that they claim to do, and ratios are ratios of what was timed."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from exitpoll import Engine, InputError, Policy, load_model
from exitpoll.benchmark import timing as timing_module
from exitpoll.benchmark.baselines import batch_level_exit, plain_transformers, single_graph, static_model
from exitpoll.benchmark.parts import break_down
from exitpoll.benchmark.timing import Benchmark, ModelInRuntime, Timing, Way, benchmark, load_in_runtimes
from exitpoll.cli.tables import benchmark_table
from exitpoll.cli.verbs import bench
from exitpoll.decide.incremental import Stepper
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.walks import PastExits
from exitpoll.export.quantize import quantize
from exitpoll.files import write_json
from tests.tiny import toy_texts, write_toy_folder

TEXTS = list(toy_texts(24, 6).first)


@pytest.fixture(scope="module")
def model(model_folder, graphs_folder, exported_folder, tmp_path_factory):
    """A model with exports, and with policies by which about half the texts leave at the first exit."""
    folder = shutil.copytree(model_folder, tmp_path_factory.mktemp("bench") / "model")
    shutil.copytree(exported_folder, folder / "onnx")
    (folder / "onnx-int8").mkdir()
    quantize(graphs_folder, folder / "onnx-int8", toy_texts(24, 6))
    at_first_exit = Engine.load(folder, policy=Policy("max_prob", 0.0))(TEXTS)
    threshold = statistics.median(prediction.probability for prediction in at_first_exit)
    for path in (folder, folder / "onnx", folder / "onnx-int8"):
        Policy("max_prob", threshold).save(path / "policy.json")
    return folder


@pytest.fixture(scope="module")
def logits(model):
    return record_in_memory(load_model(model), toy_texts(24, 6)).logits


def test_plain_transformers_and_single_graphs_are_the_full_model(model, logits):
    loaded = load_model(model)
    for baseline in (plain_transformers(loaded), single_graph(loaded)):
        np.testing.assert_allclose(baseline(TEXTS, 5), logits[:, -1], atol=1e-4)
    quantized = single_graph(loaded, int8=True)(TEXTS, 1)
    assert (quantized.argmax(-1) == logits[:, -1].argmax(-1)).mean() > 0.9
    with pytest.raises(InputError, match="plain transformers needs a model in torch, not onnx float32"):
        plain_transformers(load_model(model, "onnx"))
    with pytest.raises(InputError, match="is made of a model in torch, not onnx float32"):
        single_graph(load_model(model, "onnx"))


def test_a_static_model_stops_at_its_layer(model, logits):
    np.testing.assert_allclose(static_model(load_model(model), 1)(TEXTS, 7), logits[:, 1], atol=1e-5)


def test_a_batch_exits_with_the_last_of_its_texts(model, logits):
    loaded = load_model(model)
    np.testing.assert_allclose(batch_level_exit(loaded, Policy("max_prob", 0.0))(TEXTS, 8), logits[:, 0], atol=1e-5)
    np.testing.assert_allclose(batch_level_exit(loaded, Policy("max_prob", 2.0))(TEXTS, 8), logits[:, 2], atol=1e-5)
    p = np.exp(logits[:, 0]) / np.exp(logits[:, 0]).sum(-1, keepdims=True)
    second = float(np.sort(p.max(-1))[-2])  # only the surest text may exit at once, and has to wait for the others
    some = Policy("max_prob", 0.0, exit_layers=(2, 3))
    np.testing.assert_allclose(batch_level_exit(loaded, some)(TEXTS, 8), logits[:, 1], atol=1e-5)
    waited = batch_level_exit(loaded, Policy("max_prob", second + 1e-6, max_depth=2))(TEXTS, 24)
    np.testing.assert_allclose(waited, logits[:, 1], atol=1e-5)


def test_ratios_are_of_what_was_timed(model):
    seen = []
    models = load_in_runtimes(model)
    result = benchmark(
        models,
        TEXTS,
        batch_sizes=[1, 8],
        rounds=1,
        on_progress=lambda progress: seen.append((progress.done, progress.total)),
    )
    assert [entry.kind for entry in models] == ["torch", "onnx", "onnx-int8"]
    assert seen[-1] == (len(result.timings) * 2, len(result.timings) * 2)
    timings = {(timing.runtime, timing.way, timing.batch_size): timing for timing in result.timings}
    for timing in result.timings:
        plain = timings["torch", Way.PLAIN, timing.batch_size].milliseconds
        full = timings[timing.runtime, Way.FULL_DEPTH, timing.batch_size].milliseconds
        assert timing.against_plain == pytest.approx(plain / timing.milliseconds, rel=0.02)
        assert timing.against_full == pytest.approx(full / timing.milliseconds, rel=0.02)
        assert timing.of_layers == pytest.approx(timing.against_full * timing.depth / 3, rel=0.02)
    engine = timings["torch", Way.ENGINE, 1].depth
    assert 1 < engine < 3
    for way in (Way.NO_REFILL, Way.BATCH_LEVEL_EXIT):
        assert timings["torch", way, 8].depth == engine
    for runtime, way in (("torch", Way.PLAIN), ("onnx", Way.SINGLE_GRAPH), ("onnx-int8", Way.FULL_DEPTH)):
        assert timings[runtime, way, 8].depth == 3
    assert timings["onnx", Way.STATIC, 8].depth in (1, 2, 3)
    assert {timing.way for timing in result.timings} == set(Way) - {Way.COMPILED}
    assert [(gain.runtime, gain.batch_size) for gain in result.gains] == [
        (runtime, size) for size in (1, 8) for runtime in ("torch", "onnx", "onnx-int8")
    ]
    for gain in result.gains:
        for ratio in (gain.without_exits, gain.by_exits, gain.total):
            assert ratio.low <= ratio.value <= ratio.high
        assert gain.total.value == pytest.approx(gain.without_exits.value * gain.by_exits.value, rel=0.02)
    assert len(benchmark_table(result).rows) == len(result.timings)
    assert json.loads(json.dumps(result.to_dict()))["layers"] == 3
    assert json.loads(json.dumps(result.to_dict()))["timings"][0]["way"] == "plain transformers"


def timing(runtime, way, *rounds):
    return Timing(runtime, way, 8, min(rounds), 3.0, 1.0, 1.0, 1.0, rounds)


def test_early_exit_is_not_credited_with_what_the_runtime_gains():
    timings = [
        timing("torch", Way.PLAIN, 8.0, 9.0),
        timing("torch", Way.FULL_DEPTH, 8.8, 10.0),
        timing("torch", Way.ENGINE, 4.0, 6.0),
        timing("onnx", Way.SINGLE_GRAPH, 4.0, 4.5),
        timing("onnx", Way.FULL_DEPTH, 5.0, 5.0),
        timing("onnx", Way.ENGINE, 2.0, 3.0),
    ]
    in_torch, in_onnx = Benchmark(10, 12.0, 2, 3, timings, []).gains
    assert (in_torch.without_exits.value, in_torch.by_exits.value, in_torch.total.value) == (1.0, 2.0, 2.0)
    assert (in_onnx.without_exits.value, in_onnx.by_exits.value, in_onnx.total.value) == (2.0, 2.0, 4.0)
    assert (in_onnx.by_exits.low, in_onnx.by_exits.high) == (1.5, 2.0)
    assert str(in_onnx) == (
        "onnx, batch size 8: 2.00 × (1.50 to 2.00) by early exit, on top of 2.00 × (2.00 to 2.00) by running all "
        "layers in onnx; together 4.00 × (3.00 to 4.00) as fast as plain transformers"
    )
    assert "by early exit" in repr(Benchmark(10, 12.0, 2, 3, timings, []))


def test_the_ways_are_those_of_results_written_before():
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "engine.json"
    tasks = json.loads(path.read_text(encoding="utf-8"))["tasks"].values()
    assert {timing["way"] for task in tasks for timing in task["timings"]} <= set(Way)


def test_a_benchmark_is_the_same_after_saving_and_loading(model, tmp_path):
    result = benchmark(load_in_runtimes(model)[:1], TEXTS[:4], batch_sizes=[4], rounds=1)
    write_json(tmp_path / "bench.json", result.to_dict())
    assert Benchmark.load(tmp_path / "bench.json") == result
    written = (tmp_path / "bench.json").read_text()
    for old, new in (
        ('"static"', '"unknown"'),
        ('"plain transformers"', '"static"'),
        ('"timings": [', '"timings": [[],'),
        ('"milliseconds": ', '"milliseconds": 0, "depth": '),
        ('"rounds": [', '"rounds": ["a",'),
    ):
        (tmp_path / "bench.json").write_text(written.replace(old, new))
        with pytest.raises(InputError, match=r"bench.json' is not what exitpoll bench writes"):
            Benchmark.load(tmp_path / "bench.json")


def test_a_breakdown_has_the_time_of_every_part(model):
    for runtime in load_in_runtimes(model):
        by_itself = isinstance(Engine(runtime.loaded, runtime.policy).walk, PastExits)
        parts = ("layers with exits",) if by_itself else ("embedding", "layers", "heads", "decision")
        breakdown = break_down(runtime.kind, runtime.loaded, runtime.policy, TEXTS, 8)
        assert {"tokenizing", "gathering", "other", *parts} <= set(breakdown.milliseconds)
        assert all(milliseconds >= 0 for milliseconds in breakdown.milliseconds.values())
        for part in ("tokenizing", *parts):
            assert breakdown.milliseconds[part] > 0


def test_all_that_decides_is_timed_as_deciding(model, monkeypatch):
    step = Stepper.step

    def slow(*arguments):
        time.sleep(0.002)
        return step(*arguments)

    monkeypatch.setattr(Stepper, "step", slow)
    in_torch = load_in_runtimes(model)[0]
    breakdown = break_down(in_torch.kind, in_torch.loaded, in_torch.policy, TEXTS, len(TEXTS))
    assert breakdown.milliseconds["decision"] * len(TEXTS) > 2 * 2  # at two exits or more


def test_refusals(model, model_folder):
    models = load_in_runtimes(model)
    with pytest.raises(InputError, match="no texts to time"):
        benchmark(models, [])
    with pytest.raises(InputError, match="must be at least 1"):
        benchmark(models, TEXTS, rounds=0)
    with pytest.raises(InputError, match="torch must be the first"):
        benchmark([ModelInRuntime("onnx", models[1].loaded, models[1].policy)], TEXTS)
    with pytest.raises(InputError, match="without a policy no text exits early; calibrate first"):
        load_in_runtimes(model_folder)


def test_exports_are_not_timed_beside_torch_on_a_gpu(model, monkeypatch):
    asked = []

    def load_model(folder, kind, *, threads, device):
        asked.append((kind, device))
        runtime = SimpleNamespace(device=device, threads=1)
        return SimpleNamespace(runtime=runtime)

    monkeypatch.setattr(timing_module, "load_model", load_model)
    assert [entry.kind for entry in load_in_runtimes(model, device="cuda")] == ["torch"]
    assert [entry.kind for entry in load_in_runtimes(model, device="cpu")] == ["torch", "onnx", "onnx-int8"]
    assert asked == [("torch", "cuda"), ("torch", "cpu"), ("onnx", "cpu"), ("onnx-int8", "cpu")]


def test_timings_belong_to_a_model_in_any_runtime(tmp_path):
    timed = Benchmark(10, 12.0, 2, 3, [], [], {"fingerprints": {"torch": "a", "onnx": "b"}})
    for fingerprint in ("a", "b"):
        timed.check_model(tmp_path, fingerprint)
    with pytest.raises(InputError, match="was made from another model: fingerprint a, b, not c"):
        timed.check_model(tmp_path, "c")


def test_a_busy_machine_is_noted(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, noted in ((0.5, 0), (2.5, 1)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0, 0))
        assert len(bench._note_busy()) == noted


def test_the_verb(run, model, tmp_path):
    data = write_toy_folder(tmp_path / "toy")
    sizes = ("--batch-sizes", "4", "--rounds", "1", "--texts", "12")
    code, out, _ = run("bench", model, "--data", data, *sizes, "--out", tmp_path / "out")
    assert code == 0
    assert "plain transformers" in out
    assert "onnx, batch size 4: " in out
    assert "by early exit, on top of" in out
    content = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert (content["texts"], content["about"]["split"]) == (12, "test")
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = run("bench", model, "--data", data, "--texts", "0")
    assert code == 2
    assert "texts 0 must be at least 1" in err
