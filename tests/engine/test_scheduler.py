"""Whoever waits, is joined, split or called: every text leaves once, where its policy says."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.engine import scheduler as flow
from exitpoll.engine.scheduler import Batch, Scheduler

LAYERS = (1, 2, 4, 5, 6)


class Numbers:
    """A runtime whose states are the numbers of the texts, and whose heads say something of each number."""

    exit_layers, classes, problem_type = LAYERS, 2, "single_label_classification"

    def __init__(self, shares_layers, batch_size):
        self.shares_layers, self.batch_size = shares_layers, batch_size

    def embed(self, tokens):
        return np.array([ids[0] for ids in tokens["input_ids"]])

    def advance(self, state, layers):
        assert len(state) <= self.batch_size
        return state

    def logits_at(self, state, exit_number, rows=None):
        clear = ((state if rows is None else state[rows]) * 2654435761 + exit_number * 40503) % 1000 / 250
        return np.stack([clear, -clear], axis=-1).astype(np.float32)

    def gather(self, parts):
        return np.concatenate([state if rows is None else state[rows] for state, rows in parts])


def batches(lengths, size):
    for start in range(0, len(lengths), size):
        numbers = np.arange(start, min(start + size, len(lengths)))
        yield Batch(numbers, {"input_ids": [[int(number)] * int(lengths[start]) for number in numbers]})


def test_whoever_never_leaves_runs_each_layer_once_and_asks_one_head():
    """Law 3: an engine that never fires does what the plain encoder does, and no more."""
    ran, asked = [], []

    class Counting(Numbers):
        def advance(self, state, layers):
            ran.extend(layers)
            return state

        def logits_at(self, state, exit_number, rows=None):
            asked.append(exit_number)
            return super().logits_at(state, exit_number, rows)

        def gather(self, parts):
            raise AssertionError("nobody joins")

    left = list(Scheduler(Counting(False, 8), Policy(), 8).run(batches(np.full(40, 5), 8)))
    assert sum(len(each.numbers) for each in left) == 40
    assert (ran, asked) == ([1, 2, 3, 4, 5, 6] * 5, [4] * 5)


def test_a_text_whose_numbers_are_none_leaves_last():
    """Law 5, live: all others leave at once."""

    class Broken(Numbers):
        def logits_at(self, state, exit_number, rows=None):
            said = super().logits_at(state, exit_number, rows)
            said[(state if rows is None else state[rows]) == 7] = np.nan
            return said

    found = {}
    for left in Scheduler(Broken(False, 8), Policy("max_prob", 0.0), 8).run(batches(np.full(20, 5), 8)):
        found |= dict.fromkeys(left.numbers.tolist(), left.exit_number)
    assert found == {number: 4 if number == 7 else 0 for number in range(20)}


@pytest.mark.parametrize("shares_layers", [False, True])
def test_every_text_leaves_once_where_its_policy_says(monkeypatch, shares_layers):
    for seed in range(300):
        chance = np.random.default_rng(seed)
        monkeypatch.setattr(flow, "LONGEST_WAIT", int(chance.choice([0, 40, 8192])))
        lengths, size = chance.integers(2, 60, 200), int(chance.integers(1, 20))
        runtime, policy = Numbers(shares_layers, size), Policy("max_prob", float(chance.uniform(0.8, 0.9999)))
        found = np.full(len(lengths), -1)
        for left in Scheduler(runtime, policy, size, refill=bool(seed % 5)).run(batches(lengths, size)):
            assert (found[left.numbers] == -1).all()
            found[left.numbers] = left.exit_number
        everyone = np.arange(len(lengths))
        logits = np.stack([runtime.logits_at(everyone, number) for number in range(len(LAYERS))], axis=1)
        np.testing.assert_array_equal(found, policy.decide(Trace(logits, exit_layers=LAYERS)).exit)
