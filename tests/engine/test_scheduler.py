"""However groups wait, join and split: every text leaves once, at the exit that its policy decides."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.engine import scheduler
from exitpoll.engine.scheduler import Batch, Scheduler
from tests.numbers_runtime import LAYERS, Numbers


def batches(lengths, size):
    for start in range(0, len(lengths), size):
        numbers = np.arange(start, min(start + size, len(lengths)))
        yield Batch(numbers, {"input_ids": [[int(number)] * int(lengths[start]) for number in numbers]})


def test_without_early_exits_every_layer_runs_once_and_one_head_is_asked():
    """Law 3: an engine that never exits early does no more work than the plain encoder."""
    ran, asked = [], []

    class Counting(Numbers):
        def advance(self, state, layers):
            ran.extend(layers)
            return state

        def logits_at(self, state, exit_number, rows=None):
            asked.append(exit_number)
            return super().logits_at(state, exit_number, rows)

        def gather(self, parts):
            raise AssertionError("there is nothing to join")

    departures = list(Scheduler(Counting(False, 8), Policy(), 8).run(batches(np.full(40, 5), 8)))
    assert sum(len(departure.numbers) for departure in departures) == 40
    assert (ran, asked) == ([1, 2, 3, 4, 5, 6] * 5, [4] * 5)


def test_a_text_with_nan_logits_leaves_last():
    """Law 5, live: all others leave at the first exit."""

    class Broken(Numbers):
        def logits_at(self, state, exit_number, rows=None):
            logits = super().logits_at(state, exit_number, rows)
            logits[(state if rows is None else state[rows]) == 7] = np.nan
            return logits

    exits = {}
    for departure in Scheduler(Broken(False, 8), Policy("max_prob", 0.0), 8).run(batches(np.full(20, 5), 8)):
        exits |= dict.fromkeys(departure.numbers.tolist(), departure.exit_number)
    assert exits == {number: 4 if number == 7 else 0 for number in range(20)}


@pytest.mark.parametrize("shares_layers", [False, True])
def test_every_text_leaves_once_at_the_exit_of_its_policy(monkeypatch, shares_layers):
    for seed in range(300):
        chance = np.random.default_rng(seed)
        monkeypatch.setattr(scheduler, "LONGEST_WAIT", int(chance.choice([0, 40, 8192])))
        lengths, size = chance.integers(2, 60, 200), int(chance.integers(1, 20))
        runtime, policy = Numbers(shares_layers, size), Policy("max_prob", float(chance.uniform(0.8, 0.9999)))
        exits = np.full(len(lengths), -1)
        for departure in Scheduler(runtime, policy, size, refill=bool(seed % 5)).run(batches(lengths, size)):
            assert (exits[departure.numbers] == -1).all()
            exits[departure.numbers] = departure.exit_number
        numbers = np.arange(len(lengths))
        logits = np.stack([runtime.logits_at(numbers, number) for number in range(len(LAYERS))], axis=1)
        np.testing.assert_array_equal(exits, policy.decide(Trace(logits, exit_layers=LAYERS)).exit)
