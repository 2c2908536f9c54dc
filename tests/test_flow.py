"""Whoever waits, is joined, split or called: every text leaves once, where its policy says."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import Policy, Trace, flow
from exitpoll.flow import Batch, Flow

LAYERS = (1, 2, 4, 5, 6)


class Numbers:
    """A runtime whose states are the numbers of the texts, and whose heads say something of each number."""

    layers, classes, problem_type = LAYERS, 2, "single_label_classification"

    def __init__(self, shares_layers, batch_size):
        self.shares_layers, self.batch_size = shares_layers, batch_size

    def embed(self, tokens):
        return np.array([ids[0] for ids in tokens["input_ids"]])

    def advance(self, state, layers):
        assert len(state) <= self.batch_size
        return state

    def answer(self, state, exit_number, rows=None):
        clear = ((state if rows is None else state[rows]) * 2654435761 + exit_number * 40503) % 1000 / 250
        return np.stack([clear, -clear], axis=-1).astype(np.float32)

    def gather(self, parts):
        return np.concatenate([state if rows is None else state[rows] for state, rows in parts])


def batches(lengths, size):
    for start in range(0, len(lengths), size):
        numbers = np.arange(start, min(start + size, len(lengths)))
        yield Batch(numbers, {"input_ids": [[int(number)] * int(lengths[start]) for number in numbers]})


@pytest.mark.parametrize("shares_layers", [False, True])
def test_every_text_leaves_once_where_its_policy_says(monkeypatch, shares_layers):
    for seed in range(300):
        chance = np.random.default_rng(seed)
        monkeypatch.setattr(flow, "LONGEST_WAIT", int(chance.choice([0, 40, 8192])))
        lengths, size = chance.integers(2, 60, 200), int(chance.integers(1, 20))
        runtime, policy = Numbers(shares_layers, size), Policy("max_prob", float(chance.uniform(0.8, 0.9999)))
        found = np.full(len(lengths), -1)
        for left in Flow(runtime, policy, size, refill=bool(seed % 5)).run(batches(lengths, size)):
            assert (found[left.numbers] == -1).all()
            found[left.numbers] = left.exit_number
        everyone = np.arange(len(lengths))
        logits = np.stack([runtime.answer(everyone, number) for number in range(len(LAYERS))], axis=1)
        np.testing.assert_array_equal(found, policy.decide(Trace(logits, layers=LAYERS)).exit)
