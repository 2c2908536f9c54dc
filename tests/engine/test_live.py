"""Whatever arrives, is cancelled, fails or expires meanwhile: a text is answered as it would be alone."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from exitpoll import Policy, Trace
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.engine.arrivals import with_depth_cap
from exitpoll.engine.costs import CallCosts
from exitpoll.engine.live import MAX_WAIT, LiveScheduler
from tests.numbers_runtime import LAYERS, ExitingNumbers, Numbers
from tests.samples import settings_of

TEXTS = 2000
COSTS = CallCosts(call_tokens=8.0, best_tokens=64)
POLICIES = (
    Policy("max_prob", 0.95),
    Policy("votes", 1.6, {"k": 0.5}),
    Policy("patience", 2, exit_layers=(2, 5, 6)),
    Policy(),
)


class Clock:
    """A clock that tests move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def tokens_of(*ids, length=5):
    return {"input_ids": [[int(number)] * length for number in ids]}


def alone(policy, text, max_depth=None):
    """What a text is answered by replay: its exit and class."""
    policy = policy if max_depth is None else with_depth_cap(policy, max_depth)
    logits = np.stack([Numbers().logits_at(np.array([text]), number) for number in range(len(LAYERS))], axis=1)
    decisions = policy.decide(Trace(logits, exit_layers=LAYERS))
    return LAYERS[int(decisions.exit[0])], int(decisions.answer[0])


def answers(scheduler, most_steps=10_000):
    """Step until nothing is under way; depth and class by number."""
    found = {}
    for _ in range(most_steps):
        if not scheduler.texts:
            return found
        found |= answered(scheduler.step())
    raise AssertionError("texts never leave")


def answered(step):
    """Depth and class of the texts that leave in a step."""
    found = {}
    for departure in step.departures:
        for number, exit_number, answer in zip(
            departure.numbers.tolist(), departure.exit_numbers.tolist(), departure.answer.tolist(), strict=True
        ):
            assert number not in found
            found[number] = LAYERS[exit_number], answer
    return found


def runtime_of(kind):
    return ExitingNumbers(POLICIES[0]) if kind == "past exits" else Numbers(kind == "shared layers")


@functools.cache
def all_alone(policy_number, max_depth):
    """What every text up to `TEXTS` is answered by replay."""
    policy = POLICIES[policy_number]
    policy = policy if max_depth is None else with_depth_cap(policy, max_depth)
    ids = np.arange(TEXTS)
    logits = np.stack([Numbers().logits_at(ids, number) for number in range(len(LAYERS))], axis=1)
    decisions = policy.decide(Trace(logits, exit_layers=LAYERS))
    return [
        (LAYERS[row], answer) for row, answer in zip(decisions.exit.tolist(), decisions.answer.tolist(), strict=True)
    ]


@pytest.mark.parametrize("kind", ["layers", "shared layers", "past exits"])
def test_random_schedules_answer_as_alone(kind, clock):
    """Ten thousand schedules: a few of them long, the others short."""
    policies = POLICIES[:1] if kind == "past exits" else POLICIES
    for seed in range(3334):
        chance = np.random.default_rng(seed)
        costs = CallCosts(float(chance.choice([0.0, 8.0, 60.0])), int(chance.choice([16, 64, 1024])))
        scheduler = LiveScheduler(runtime_of(kind), costs, clock=clock)
        expected, found, gone = {}, {}, set()
        for _ in range(30 if seed < 34 else 3):
            clock.now += float(chance.exponential(0.1))
            chosen = int(chance.integers(len(policies)))
            policy, texts = policies[chosen], chance.integers(TEXTS, size=chance.integers(4))
            max_depth = None if kind == "past exits" or chance.random() < 0.7 else int(chance.integers(2, 7))
            deadline = clock.now + float(chance.exponential(2.0)) if chance.random() < 0.5 else None
            length = int(chance.integers(1, 30))
            numbers = scheduler.submit(
                tokens_of(*texts, length=length),
                policy,
                max_depth,
                deadline,
                explain=kind != "past exits" and chance.random() < 0.2,
            )
            answers_alone = all_alone(chosen, max_depth)
            expected |= {number: answers_alone[text] for number, text in zip(numbers, texts.tolist(), strict=True)}
            if scheduler.texts and chance.random() < 0.2:
                gone |= set(scheduler.cancel([int(chance.choice(list(scheduler.texts)))]))
            gone |= set(scheduler.expire())
            for _ in range(chance.integers(4)):
                found |= answered(scheduler.step())
        found |= answers(scheduler)
        assert found == {number: answer for number, answer in expected.items() if number not in gone}
        scheduler.step()  # those cancelled last are dropped
        assert (scheduler.queue, scheduler.pools) == ([], {})


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_answers_as_alone(name, clock):
    ids = np.arange(40)
    logits = np.stack([Numbers().logits_at(ids, number) for number in range(len(LAYERS))], axis=1)
    policy = Policy(name, 0.0, settings_of(name, len(LAYERS)))
    policy = policy.at(float(np.median(policy.opinion(logits).score[:, 2])))
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
    expected, found = {}, {}
    for text in ids.tolist():
        chosen = policy if text % 3 else POLICIES[0]
        [number] = scheduler.submit(tokens_of(text, length=5 + text % 4), chosen)
        expected[number] = alone(chosen, text)
        if text % 4 == 0:
            found |= answered(scheduler.step())
    assert found | answers(scheduler) == expected


def test_the_text_that_is_due_first_is_in_every_call(clock):
    """No text waits behind one that is due later, so none waits for ever."""
    chance, scheduler = np.random.default_rng(0), LiveScheduler(Numbers(), COSTS, clock=clock)
    for _ in range(400):
        clock.now += 0.01
        deadline = clock.now + float(chance.uniform(0.1, 3)) if chance.random() < 0.5 else None
        policy = POLICIES[chance.integers(len(POLICIES))]
        scheduler.submit(
            tokens_of(chance.integers(10_000), length=int(chance.integers(1, 30))), policy, deadline=deadline
        )
        first = min(text.due for text in scheduler.texts.values())
        due = {number: text.due for number, text in scheduler.texts.items()}
        step = scheduler.step()
        assert first in {due[number] for number in step.numbers}


def test_a_text_that_arrives_joins_others_that_are_half_way(clock):
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
    scheduler.submit(tokens_of(1), Policy())
    scheduler.submit(tokens_of(2), Policy("votes", 9.0))  # never fires
    assert scheduler.step().numbers == [0, 1]  # two policies in one call
    [new] = scheduler.submit(tokens_of(3), Policy("votes", 9.0), deadline=MAX_WAIT / 2)
    assert scheduler.step().numbers == [new]
    shared = scheduler.step()
    assert sorted(shared.numbers) == [0, 1, 2]
    assert (shared.depth, shared.tokens, shared.padded) == (1, 15, 15)


def test_texts_that_come_later_do_not_starve_one_that_waits(clock):
    """A long and deep text among many short and hurried ones, which keep coming, is answered when it is due."""
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
    [deep] = scheduler.submit(tokens_of(1, length=40), Policy("votes", 9.0))
    hurried, calls = 0.3 * MAX_WAIT, 0
    while deep in scheduler.texts:
        clock.now += 0.01 * MAX_WAIT
        scheduler.submit(tokens_of(*range(20), length=3), Policy("max_prob", 0.0), deadline=clock.now + hurried)
        scheduler.expire()
        calls += deep in scheduler.step().numbers
        assert clock.now <= MAX_WAIT
    assert clock.now > MAX_WAIT - hurried  # those that were due before it went first
    assert calls == len(LAYERS)


@pytest.mark.parametrize("max_wait", [0.0, 0.02, 0.5])
def test_no_text_waits_longer_than_max_wait_behind_newer_ones(clock, max_wait):
    """Deep texts among shallow ones with near deadlines: what came too late to go first never has a call of its own."""
    chance = np.random.default_rng(1)
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock, max_wait=max_wait)
    arrived, overtaken = {}, 0
    for _ in range(600):
        clock.now += 0.004
        deep = chance.random() < 0.2
        policy = Policy("votes", 9.0) if deep else Policy("max_prob", 0.0)
        deadline = None if deep else clock.now + float(chance.exponential(2 * max_wait + 0.01))
        texts = chance.integers(TEXTS, size=1 if deep else 4)
        length = int(chance.integers(20, 40)) if deep else int(chance.integers(1, 8))
        numbers = scheduler.submit(tokens_of(*texts, length=length), policy, deadline=deadline)
        arrived |= dict.fromkeys(numbers, clock.now)
        scheduler.expire()
        oldest = min(arrived[number] for number in scheduler.texts)
        first = min(arrived[number] for number in scheduler.step().numbers)
        assert first <= oldest + max_wait
        assert first == oldest or clock.now <= oldest + max_wait
        overtaken += first > oldest
    assert bool(overtaken) == (max_wait > 0)


@pytest.mark.parametrize("kind", ["layers", "past exits"])
def test_texts_in_the_background_run_one_by_one_and_never_with_others(clock, kind):
    """Live calls are as if there were none, and a text that arrives waits for the call of one at most."""
    live, full = (POLICIES[0], POLICIES[0]) if kind == "past exits" else (POLICIES[1], Policy())
    calls = {}
    for waiting in (0, 60):
        scheduler = LiveScheduler(runtime_of(kind), COSTS, clock=clock)
        background = scheduler.submit(tokens_of(*range(waiting)), full, due=math.inf)
        found, calls[waiting] = {}, []
        for text in range(100, 120):
            numbers = scheduler.submit(tokens_of(text, text + 1000), live)
            while not found.keys() >= set(numbers):
                step = scheduler.step()
                found |= answered(step)
                calls[waiting].append([number - waiting for number in step.numbers])
        assert background == [number for number in background if number in scheduler.texts]
        while scheduler.texts:
            step = scheduler.step()
            assert len(step.numbers) == 1
            found |= answered(step)
        assert [found[number] for number in background] == [alone(full, text) for text in range(waiting)]
    assert calls[0] == calls[60]


def test_texts_that_run_alone_share_no_call(clock):
    named = []
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock, on_call=lambda numbers: named.append(list(numbers)))
    policy = Policy("votes", 9.0)
    first = scheduler.submit(tokens_of(1, 2), policy, alone=True)
    others = scheduler.submit(tokens_of(3, 4), policy)
    steps = []
    found = {}
    while scheduler.texts:
        steps.append(scheduler.step())
        found |= answered(steps[-1])
    assert found == {number: alone(policy, text) for number, text in zip(first + others, (1, 2, 3, 4), strict=True)}
    assert {tuple(sorted(step.numbers)) for step in steps} == {(0,), (1,), (2, 3)}
    assert named == [list(step.numbers) for step in steps]


def test_padding_is_accepted_up_to_the_cost_of_a_call(clock):
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
    for length in (10, 14, 30, 11):
        scheduler.submit(tokens_of(length, length=length), Policy())
    assert scheduler.step().numbers == [0, 1, 3]  # the third would need more padding than a call costs
    scheduler.submit(tokens_of(*range(50)), Policy())
    assert scheduler.step().numbers == [2]
    assert len(scheduler.step().numbers) == COSTS.best_tokens // 5


def test_cancelled_at_every_depth(clock):
    for calls in range(len(LAYERS)):
        scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
        never = Policy("votes", 9.0)
        first, second = scheduler.submit(tokens_of(1, 2), never)
        for _ in range(calls):
            assert set(scheduler.step().numbers) == {first, second}
        assert scheduler.cancel([first, 77]) == [first]
        assert scheduler.cancel([first]) == []
        step = scheduler.step()
        assert step.numbers == [second]
        assert answered(step) | answers(scheduler) == {second: alone(never, 2)}


def test_deadlines(clock):
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
    [patient] = scheduler.submit(tokens_of(1, length=40), Policy("votes", 9.0))
    [hurried] = scheduler.submit(tokens_of(2), Policy("votes", 9.0), deadline=MAX_WAIT / 2)
    assert scheduler.step().numbers == [hurried]
    clock.now = MAX_WAIT / 2
    assert scheduler.expire() == [hurried]
    assert scheduler.expire() == []
    assert scheduler.step().numbers == [patient]
    [urgent] = scheduler.submit(tokens_of(3), Policy(), due=-1.0)
    [unimportant] = scheduler.submit(tokens_of(3, length=20), Policy(), due=float("inf"))
    assert scheduler.step().numbers[0] == urgent
    assert list(answers(scheduler)) == [patient, unimportant]


def test_nothing_is_kept_of_texts_that_have_left(clock):
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
    for text in range(100):
        scheduler.submit(tokens_of(text), POLICIES[0], deadline=clock() + 60)
        answers(scheduler)
        assert scheduler.expire() == []
    sizes = {name: len(value) for name, value in vars(scheduler).items() if isinstance(value, list | dict | set)}
    assert sizes == {**dict.fromkeys(sizes, 0), "_walks": 1}


def test_one_text_that_cannot_be_run_fails_alone(clock):
    class Fragile(Numbers):
        """Fails on a text at layer 4."""

        def advance(self, state, layers):
            if 4 in layers and 7 in state:
                raise RuntimeError("poison")
            return state

        def logits_at(self, state, exit_number, rows=None):
            if exit_number == 0 and 8 in state:
                raise RuntimeError("poison at the first exit")
            return super().logits_at(state, exit_number, rows)

    scheduler = LiveScheduler(Fragile(), COSTS, clock=clock)
    never, votes = Policy("votes", 9.0), POLICIES[1]
    numbers = scheduler.submit(tokens_of(5, 6, 7), never) + scheduler.submit(tokens_of(8, 9), votes)
    found, failed = {}, {}
    while scheduler.texts:
        step = scheduler.step()
        found |= answered(step)
        failed |= {failure.number: str(failure.error) for failure in step.failures}
    assert failed == {numbers[2]: "poison", numbers[4 - 1]: "poison at the first exit"}
    assert found == {0: alone(never, 5), 1: alone(never, 6), 4: alone(votes, 9)}
    assert not scheduler._alone


@pytest.mark.parametrize("when", ["layers", "head"])
def test_a_call_that_fails_half_way_is_repeated_text_by_text(clock, when):
    class Fragile(Numbers):
        """Fails on a text at layer 5, before or after it has run."""

        def advance(self, state, layers):
            if when == "layers" and 5 in layers and 7 in state:
                raise RuntimeError("poison")
            return state

        def logits_at(self, state, exit_number, rows=None):
            if when == "head" and exit_number == LAYERS.index(5) and 7 in (state if rows is None else state[rows]):
                raise RuntimeError("poison")
            return super().logits_at(state, exit_number, rows)

    scheduler = LiveScheduler(Fragile(), COSTS, clock=clock)
    policies = Policy("votes", 2.2, {"k": 0.5}), Policy("patience", 4)
    texts = {}
    for policy in policies:
        numbers = scheduler.submit(tokens_of(*range(5, 9)), policy)
        texts |= {number: (policy, text) for number, text in zip(numbers, range(5, 9), strict=True)}
    found, failed = {}, set()
    while scheduler.texts:
        step = scheduler.step()
        found |= answered(step)
        failed |= {failure.number for failure in step.failures}
    assert {texts[number][1] for number in failed} == {7}
    assert found == {number: alone(*what) for number, what in texts.items() if number not in failed}


def test_a_departure_can_explain_itself(clock):
    policy = Policy("patience", 2, exit_layers=(2, 5, 6))
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
    scheduler.submit(tokens_of(1, 2), policy, explain=True)
    departures = []
    while scheduler.texts:
        departures += scheduler.step().departures
    for departure in departures:
        for row, number in enumerate(departure.numbers):
            exits = [LAYERS.index(layer) for layer in (2, 5, 6)]
            asked = [Numbers().logits_at(np.array([number + 1]), exit_number)[0] for exit_number in exits]
            reached = exits.index(int(departure.exit_numbers[row])) + 1
            np.testing.assert_array_equal(departure.seen[row, :reached], asked[:reached])
            assert np.isnan(departure.seen[row, reached:]).all()


def test_policies_are_prepared_once_and_can_be_forgotten(clock):
    scheduler = LiveScheduler(Numbers(), COSTS, clock=clock)
    policy, other = POLICIES[:2]
    assert scheduler.walk(policy) is scheduler.walk(policy)
    assert scheduler.walk(policy, 4) is not scheduler.walk(policy)
    kept = scheduler.walk(other)
    scheduler.forget(policy)
    assert scheduler.walk(other) is kept
    assert len(scheduler._walks) == 1


def test_nothing_to_do(clock):
    step = LiveScheduler(Numbers(), clock=clock).step()
    assert not any((step.departures, step.failures, step.numbers))


def test_a_cap_above_that_of_the_policy_changes_nothing():
    assert with_depth_cap(Policy("votes", 1.0, max_depth=4), 6).max_depth == 4
    assert with_depth_cap(Policy("votes", 1.0, max_depth=4), 2).max_depth == 2
