"""What calls cost: measured on a clock, and kept with an export."""

from __future__ import annotations

import json
import shutil

import pytest

from exitpoll import Engine
from exitpoll.engine import costs
from exitpoll.engine.costs import CallCosts, costs_of, kept_costs, measure_costs
from exitpoll.engine.loading import load_model
from exitpoll.engine.runtime import LoadedModel
from tests.numbers_runtime import Numbers, tokenize


class Clock:
    """A clock that only calls of the runtime move."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize(
    ("overhead", "slower_from", "best"),
    [(0.0, 1 << 20, 672), (0.03, 1 << 20, 672), (0.0, 300, 224), (0.2, 300, 224)],
)
def test_they_are_measured(monkeypatch, overhead, slower_from, best):
    """A token takes a hundredth of a millisecond, or twice as long in calls that are too large."""
    clock = Clock()

    class Timed(Numbers):
        def embed(self, tokens):
            self.tokens = sum(map(len, tokens["input_ids"]))
            return super().embed(tokens)

        def advance(self, state, layers):
            clock.now += overhead / 1000 + self.tokens * 1e-5 * (2 if self.tokens > slower_from else 1)
            return state

    monkeypatch.setattr(costs, "time", clock)
    measured = measure_costs(LoadedModel(Timed(), tokenize, ["yes", "no"]))
    assert measured.best_tokens == best
    assert measured.call_tokens == pytest.approx(100 * overhead, abs=0.1)


def test_sizes_for_which_there_is_no_time_are_not_said_to_be_worse(monkeypatch):
    """On a slow machine only small calls are measured."""
    clock = Clock()

    class Slow(Numbers):
        def embed(self, tokens):
            self.tokens = sum(map(len, tokens["input_ids"]))
            return super().embed(tokens)

        def advance(self, state, layers):
            clock.now += 1e-3 * (16 + self.tokens)
            return state

    monkeypatch.setattr(costs, "time", clock)
    measured = measure_costs(LoadedModel(Slow(), tokenize, ["yes", "no"]))
    assert measured == CallCosts(16.0, costs.USUAL.best_tokens)
    assert clock.now < 1.0


def test_calls_are_large_where_they_cost_much(monkeypatch):
    """As on a GPU: a call takes 4 ms whatever its size."""
    clock = Clock()

    class Fast(Numbers):
        def embed(self, tokens):
            self.tokens = sum(map(len, tokens["input_ids"]))
            return super().embed(tokens)

        def advance(self, state, layers):
            clock.now += 4e-3 + 1e-7 * self.tokens
            return state

    monkeypatch.setattr(costs, "time", clock)
    measured = measure_costs(LoadedModel(Fast(), tokenize, ["yes", "no"]))
    assert measured.call_tokens == pytest.approx(40_000, rel=0.01)
    assert measured.enough_tokens == measured.best_tokens >= 300_000


def test_a_clock_that_says_nothing(monkeypatch):
    monkeypatch.setattr(costs, "time", Clock())
    assert measure_costs(LoadedModel(Numbers(), tokenize, ["yes", "no"])) == costs.USUAL


def test_an_export_keeps_them_and_broken_ones_are_measured_again(exported_folder, tmp_path, monkeypatch):
    folder = shutil.copytree(exported_folder, tmp_path / "onnx")
    (folder / "call-costs.json").unlink(missing_ok=True)  # other tests may have measured
    monkeypatch.setattr(costs.platform, "node", lambda: "a-name")
    monkeypatch.setattr(costs, "measure_costs", lambda model: CallCosts(7.0, 64))
    assert costs_of(load_model(folder, threads=1)) == CallCosts(7.0, 64)
    path = folder / "call-costs.json"
    [key] = json.loads(path.read_text())
    assert "a-name" not in key
    monkeypatch.setattr(costs, "measure_costs", lambda model: CallCosts(9.0, 32))
    assert costs_of(load_model(folder, threads=1)) == CallCosts(7.0, 64)
    for broken in (
        "x",
        {"call_tokens": "x", "best_tokens": 3},
        {"call_tokens": 1.0, "best_tokens": 0},
        {"call_tokens": 1},
    ):
        path.write_text(json.dumps({key: broken}))
        assert costs_of(load_model(folder, threads=1)) == CallCosts(9.0, 32)
    path.write_text("[")
    assert costs_of(load_model(folder, threads=1)) == CallCosts(9.0, 32)
    assert kept_costs(load_model(folder, threads=1)) == CallCosts(9.0, 32)
    for host in range(40):
        monkeypatch.setattr(costs.platform, "node", lambda host=host: f"container-{host}")
        assert kept_costs(load_model(folder, threads=1)) is None
        costs_of(load_model(folder, threads=1))
    assert len(json.loads(path.read_text())) == costs.MOST_KEPT


def test_small_jobs_measure_nothing_but_use_what_is_kept(exported_folder, tmp_path, monkeypatch):
    engine = Engine.load(shutil.copytree(exported_folder, tmp_path / "onnx"), threads=1)
    monkeypatch.setattr(costs, "measure_costs", lambda model: pytest.fail("measured"))
    (tmp_path / "onnx" / "call-costs.json").unlink(missing_ok=True)
    assert engine._costs_for(10) == costs.USUAL
    again = Engine.load(tmp_path / "onnx", threads=1)
    monkeypatch.setattr(costs, "measure_costs", lambda model: CallCosts(7.0, 64))
    assert costs_of(again.model) == again._costs_for(10) == CallCosts(7.0, 64)
