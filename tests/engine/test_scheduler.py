"""However groups wait, join and split: every text leaves once, at the exit that its policy decides."""

from __future__ import annotations

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.engine import scheduler
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.scheduler import Batch, Scheduler
from exitpoll.engine.walks import walk_for
from tests.numbers_runtime import LAYERS, ExitingNumbers, Numbers

COSTS = CallCosts(call_tokens=8.0, best_tokens=256)


def run(runtime, policy, lengths, size, costs=COSTS, refill=True):
    """Run texts of some lengths; the first token of a text is its number."""
    job = Scheduler(runtime, walk_for(runtime, policy), costs, refill=refill)
    calls = [
        Batch(rows, {"input_ids": [[int(row)] * int(lengths[row]) for row in rows]})
        for rows in job.calls(lengths, size)
    ]
    return job, list(job.run(calls))


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

    _, departures = run(Counting(), Policy(), np.full(40, 5), 8)
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
    for departure in run(Broken(), Policy("max_prob", 0.0), np.full(20, 5), 8)[1]:
        exits |= dict(zip(departure.numbers.tolist(), departure.exit_numbers.tolist(), strict=True))
    assert exits == {number: 4 if number == 7 else 0 for number in range(20)}


@pytest.mark.parametrize("kind", ["layers", "shared layers", "past exits"])
def test_every_text_leaves_once_at_the_exit_of_its_policy(monkeypatch, kind):
    for seed in range(300):
        chance = np.random.default_rng(seed)
        monkeypatch.setattr(scheduler, "LONGEST_WAIT", int(chance.choice([0, 40, 8192])))
        lengths, size = chance.integers(2, 60, 200), int(chance.integers(1, 20))
        policy = Policy("max_prob", float(chance.uniform(0.8, 0.9999)))
        costs = CallCosts(float(chance.choice([0.0, 4.0, 60.0])), int(chance.choice([16, 256, 4096])))
        runtime = ExitingNumbers(policy) if kind == "past exits" else Numbers(kind == "shared layers")
        exits = np.full(len(lengths), -1)
        for departure in run(runtime, policy, lengths, size, costs, refill=bool(seed % 5))[1]:
            assert (exits[departure.numbers] == -1).all()
            exits[departure.numbers] = departure.exit_numbers
        numbers = np.arange(len(lengths))
        logits = np.stack([Numbers().logits_at(numbers, number) for number in range(len(LAYERS))], axis=1)
        np.testing.assert_array_equal(exits, policy.decide(Trace(logits, exit_layers=LAYERS)).exit)


@pytest.mark.parametrize("refill", [True, False])
def test_a_call_has_no_more_tokens_than_the_batch_size_allows(refill):
    calls, lengths = [], np.random.default_rng(0).integers(2, 60, 400)

    class Counting(Numbers):
        def advance(self, state, layers):
            calls.append((len(state), lengths[state].max()))
            return state

    run(Counting(), Policy("max_prob", 0.99), lengths, 4, CallCosts(50.0, 1 << 20), refill=refill)
    assert max(texts * tokens for texts, tokens in calls) <= 4 * 60
    assert max(texts for texts, _ in calls) > 4  # short texts share a call


def test_one_at_a_time():
    sizes = []

    class Counting(Numbers):
        def advance(self, state, layers):
            sizes.append(len(state))
            return state

    run(Counting(), Policy("max_prob", 0.99), np.full(50, 5), 1, refill=False)
    assert set(sizes) == {1}


def test_padding_is_accepted_up_to_the_cost_of_a_call():
    lengths = np.array([20, 19, 18, 10, 10, 9])

    def calls(call_tokens, batch_size):
        job = Scheduler(Numbers(), walk_for(Numbers(), Policy()), CallCosts(call_tokens, 512))
        return [sorted(lengths[rows].tolist()) for rows in job.calls(lengths, batch_size)]

    assert calls(4.0, 8) == [[18, 19, 20], [9, 10, 10]]
    assert calls(100.0, 8) == [[9, 10, 10, 18, 19, 20]]
    assert calls(100.0, 2) == [[19, 20], [10, 18], [9, 10]]  # 40 tokens at most
