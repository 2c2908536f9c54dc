"""What is timed beside the engine does the work it claims to do, and ratios are ratios of what was timed."""

from __future__ import annotations

import json
import shutil
import statistics

import numpy as np
import pytest

from exitpoll import Engine, InputError, Policy, load_model
from exitpoll.benchmark.baselines import full_graph, plain_transformers, truncated, whole_batch_waits
from exitpoll.benchmark.timing import Contestant, benchmark, contestants, where_time_goes
from exitpoll.cli.tables import benchmark_table
from exitpoll.engine.record import record_in_memory
from exitpoll.export.quantize import quantize
from tests.tiny import toy_texts, write_toy_folder

TEXTS = list(toy_texts(24, 6).first)


@pytest.fixture(scope="module")
def model(model_folder, graphs_folder, exported_folder, tmp_path_factory):
    """A model with exports and policies by which about half the texts leave at once."""
    folder = shutil.copytree(model_folder, tmp_path_factory.mktemp("bench") / "model")
    shutil.copytree(exported_folder, folder / "onnx")
    (folder / "onnx-int8").mkdir()
    quantize(graphs_folder, folder / "onnx-int8", TEXTS)
    first = [each.probability for each in Engine.load(folder, policy=Policy("max_prob", 0.0))(TEXTS)]
    for each in (folder, folder / "onnx", folder / "onnx-int8"):
        Policy("max_prob", statistics.median(first)).save(each / "policy.json")
    return folder


@pytest.fixture(scope="module")
def logits(model):
    return record_in_memory(load_model(model), toy_texts(24, 6)).logits


def test_plain_transformers_and_full_graphs_are_the_full_model(model, logits):
    ready = load_model(model)
    for way in (plain_transformers(ready), full_graph(ready)):
        np.testing.assert_allclose(way(TEXTS, 5), logits[:, -1], atol=1e-4)
    small = full_graph(ready, int8=True)(TEXTS, 1)
    assert (small.argmax(-1) == logits[:, -1].argmax(-1)).mean() > 0.9
    with pytest.raises(InputError, match="needs a model that torch runs"):
        plain_transformers(load_model(model, "onnx"))


def test_a_static_model_stops_at_its_layer(model, logits):
    np.testing.assert_allclose(truncated(load_model(model), 1)(TEXTS, 7), logits[:, 1], atol=1e-5)


def test_a_whole_batch_waits_for_its_last_text(model, logits):
    ready = load_model(model)
    np.testing.assert_allclose(whole_batch_waits(ready, Policy("max_prob", 0.0))(TEXTS, 8), logits[:, 0], atol=1e-5)
    np.testing.assert_allclose(whole_batch_waits(ready, Policy("max_prob", 2.0))(TEXTS, 8), logits[:, 2], atol=1e-5)
    p = np.exp(logits[:, 0]) / np.exp(logits[:, 0]).sum(-1, keepdims=True)
    second = float(np.sort(p.max(-1))[-2])  # only the surest text may leave at once, and has to wait with the others
    found = whole_batch_waits(ready, Policy("max_prob", second + 1e-6, max_depth=2))(TEXTS, 24)
    np.testing.assert_allclose(found, logits[:, 1], atol=1e-5)


def test_ratios_are_of_what_was_timed(model):
    seen = []
    result = benchmark(
        contestants(model),
        TEXTS,
        batch_sizes=[1, 8],
        rounds=1,
        on_progress=lambda progress: seen.append((progress.done, progress.total)),
    )
    assert [each.kind for each in contestants(model)] == ["torch", "onnx", "onnx-int8"]
    assert seen[-1] == (len(result.timings) * 2, len(result.timings) * 2)
    times = {(each.runtime, each.way, each.batch_size): each for each in result.timings}
    for each in result.timings:
        plain = times["torch", "plain transformers", each.batch_size].milliseconds
        full = times[each.runtime, "engine, all layers", each.batch_size].milliseconds
        assert each.against_plain == pytest.approx(plain / each.milliseconds, rel=0.02)
        assert each.against_full == pytest.approx(full / each.milliseconds, rel=0.02)
        assert each.of_layers == pytest.approx(each.against_full * each.depth / 3, rel=0.02)
    assert 1 < times["torch", "engine", 1].depth < 3
    assert times["torch", "plain transformers", 8].depth == 3
    assert times["onnx", "static", 8].depth in (1, 2, 3)
    assert {each.way for each in result.timings if each.runtime == "onnx"} >= {"full graph", "whole batch waits"}
    assert benchmark_table(result).row_count == len(result.timings)
    assert json.loads(json.dumps(result.to_dict()))["layers"] == 3


def test_the_parts_make_up_the_whole(model):
    found = where_time_goes(contestants(model)[1], TEXTS, 8)
    assert set(found.milliseconds) == {
        *("tokenizing", "embedding", "layers", "heads", "decision", "gathering", "other")
    }
    assert all(each >= 0 for each in found.milliseconds.values())
    for name in ("tokenizing", "embedding", "layers", "heads", "decision"):
        assert found.milliseconds[name] > 0


def test_refusals(model, model_folder):
    runners = contestants(model)
    with pytest.raises(InputError, match="no texts to time"):
        benchmark(runners, [])
    with pytest.raises(InputError, match="must be at least 1"):
        benchmark(runners, TEXTS, rounds=0)
    with pytest.raises(InputError, match="torch must be the first"):
        benchmark([Contestant("onnx", runners[1].loaded, runners[1].policy)], TEXTS)
    with pytest.raises(InputError, match="without a policy no text leaves early; calibrate first"):
        contestants(model_folder)


def test_the_verb(run, model, tmp_path):
    data = write_toy_folder(tmp_path / "toy")
    sizes = ("--batch-sizes", "4", "--rounds", "1", "--texts", "12")
    code, out, _ = run("bench", model, "--data", data, *sizes, "--out", tmp_path / "out")
    assert code == 0
    assert "plain transformers" in out
    content = json.loads((tmp_path / "out" / "bench.json").read_text())
    assert (content["texts"], content["about"]["split"]) == (12, "test")
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = run("bench", model, "--data", data, "--texts", "0")
    assert code == 2
    assert "texts 0 must be at least 1" in err
