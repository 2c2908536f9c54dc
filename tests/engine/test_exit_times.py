"""How long it takes to leave at an exit: measured on slow heads, and on self-exiting graphs made of numbers."""

from __future__ import annotations

import time

import numpy as np
import pytest

from exitpoll import InputError, Policy, calibrate
from exitpoll.decide.costs import ExitCosts
from exitpoll.engine import exit_times
from exitpoll.engine.exit_times import time_exits
from exitpoll.engine.loading import load_model
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.runtime import exits_by_itself
from exitpoll.export.export import export_model
from tests.tiny import toy_texts

TEXTS = toy_texts(20, 4)
TOKENS = {"input_ids": [[1, 2], [3, 4]]}


@pytest.fixture(scope="module")
def ready(model_folder):
    return load_model(model_folder)


def slow_heads(runtime, seconds):
    """Return a runtime that answers as another one, but whose heads take their time."""

    class Slow:
        def __getattr__(self, name):
            return getattr(runtime, name)

        def logits_at(self, *given):
            time.sleep(seconds)
            return runtime.logits_at(*given)

    return Slow()


def test_latency_rises_with_depth(ready):
    times = time_exits(ready.runtime, ready.tokenize(TEXTS.select(np.arange(8))))
    assert 0 < times.milliseconds[0] < times.milliseconds[1] < times.milliseconds[2]


def test_the_time_of_asking_an_exit_is_that_of_its_head_and_decision(ready):
    slow = slow_heads(ready.runtime, seconds=0.004)
    times = time_exits(slow, ready.tokenize(TEXTS.select(np.arange(4))))
    assert 4 <= times.head_milliseconds < 12
    costs = ExitCosts.measured(slow.exit_layers, times.to_dict(), needs_head=True)
    np.testing.assert_allclose(costs.of(slow.exit_layers), times.milliseconds, atol=1e-3)
    assert costs.full < times.milliseconds[-1] - 7  # two heads less


class Clock:
    """A clock that only graphs move."""

    now = 0.0

    def perf_counter(self):
        return self.now


class Graph:
    """A self-exiting graph whose layers take 1 ms, and exits that its policy asks 0.3 ms."""

    problem_type, exits_by_itself, exit_layers = "single_label_classification", True, (1, 2, 4, 6)

    def __init__(self, clock, asked, load_last_alone=None):
        self.clock, self.asked, self.load_last_alone = clock, asked, load_last_alone
        self.stops = sorted({*asked, 3})

    def run_to(self, tokens, exit_number):
        asked = sum(number <= exit_number for number in self.asked)
        self.clock.now += 1e-3 * self.exit_layers[exit_number] + 3e-4 * asked


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(exit_times, "time", clock)
    return clock


def test_a_graph_that_asks_all_exits_is_compared_with_one_that_asks_the_last(clock):
    times = time_exits(Graph(clock, [0, 1, 2, 3], lambda: Graph(clock, [3])), TOKENS)
    assert times.milliseconds == pytest.approx([1.3, 2.6, 4.9, 7.2])
    assert times.head_milliseconds == pytest.approx(0.3)
    costs = ExitCosts.measured(Graph.exit_layers, times.to_dict(), needs_head=True)
    np.testing.assert_allclose(costs.layers, Graph.exit_layers, atol=1e-3)
    np.testing.assert_allclose(costs.of([2, 6]), [2.3, 6.6], atol=1e-3)


class ColdGraph(Graph):
    """A graph that takes 5 ms more if another has run since: its weights are no longer in the cache."""

    ran_last: Graph | None = None

    def run_to(self, tokens, exit_number):
        super().run_to(tokens, exit_number)
        self.clock.now += 0.0 if ColdGraph.ran_last is self else 5e-3
        ColdGraph.ran_last = self


def test_the_graph_that_asks_the_last_is_not_timed_from_cold_caches(clock):
    """It would seem slower than asking all exits, and a head would take no time."""
    times = time_exits(ColdGraph(clock, [0, 1, 2, 3], lambda: ColdGraph(clock, [3])), TOKENS)
    assert times.head_milliseconds == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("asked", [[0, 1, 2, 3], [1, 3]])
def test_what_an_exit_takes_is_not_known_of_a_graph_alone(clock, asked):
    times = time_exits(Graph(clock, asked), TOKENS)
    assert times.milliseconds[-1] == pytest.approx(6 + 0.3 * len(asked))
    assert "head_milliseconds" not in times.to_dict()
    with pytest.raises(InputError, match="does not say what asking an exit takes"):
        ExitCosts.measured(Graph.exit_layers, times.to_dict(), needs_head=True)


def test_exports_time_exits_with_their_decisions(model_folder, tmp_path):
    """While a policy is chosen for an export it is known what an exit takes; afterwards the policy inside is timed."""
    traces = []

    def policy_for(loaded):
        assert loaded.runtime.asked == [0, 1, 2]
        traces.append(record_in_memory(loaded, TEXTS))
        return Policy("max_prob", 0.6, exit_layers=(2, 3))

    export_model(model_folder, tmp_path / "onnx", policy_for=policy_for)
    assert 0 <= traces[0].about["head_milliseconds"] < traces[0].about["milliseconds"][-1]
    exported = load_exported(tmp_path / "onnx")
    assert exits_by_itself(exported.runtime)
    assert exported.runtime.asked == [1, 2]
    again = record_in_memory(exported, TEXTS)
    np.testing.assert_allclose(again.logits, traces[0].logits, atol=1e-5)
    with pytest.raises(InputError, match="does not say what asking an exit takes"):
        calibrate(again, speedup=1.2, exits="auto")


def test_a_graph_that_decides_nothing_is_timed_exit_by_exit(model_folder, tmp_path):
    """So it runs with any policy, which takes a call for every exit."""
    export_model(model_folder, tmp_path / "onnx", policy_for=lambda loaded: Policy())
    times = time_exits(load_exported(tmp_path / "onnx").runtime, {"input_ids": [[1, 2]], "token_type_ids": [[0, 0]]})
    assert len(times.milliseconds) == 3
    assert times.head_milliseconds is None  # it can stop at its last exit alone
