"""A runtime made of numbers: it needs neither weights nor torch, and starts at once in another process."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from exitpoll import Trace
from exitpoll.engine.runtime import LoadedModel, Passage

LAYERS = (1, 2, 4, 5, 6)


class Numbers:
    """A runtime whose states are the first tokens of the texts, from which its heads compute logits."""

    exit_layers, classes, problem_type = LAYERS, 2, "single_label_classification"
    name, packages, fingerprint, threads, device = "numbers", (), "0123456789abcdef", 1, "cpu"
    exits_by_itself = False

    def __init__(self, shares_layers=False, most_texts=1 << 16):
        self.shares_layers, self.most_texts = shares_layers, most_texts

    def embed(self, tokens):
        return np.array([ids[0] for ids in tokens["input_ids"]])

    def advance(self, state, layers):
        assert len(state) <= self.most_texts
        assert set(layers) <= set(range(1, LAYERS[-1] + 1))
        return state

    def logits_at(self, state, exit_number, rows=None):
        clear = ((state if rows is None else state[rows]) * 2654435761 + exit_number * 40503) % 1000 / 250
        return np.stack([clear, -clear], axis=-1).astype(np.float32)

    def gather(self, parts):
        return np.concatenate([state if rows is None else state[rows] for state, rows in parts])


class ExitingNumbers(Numbers):
    """The same, but past several exits in one call; its states are texts with the number of exits that they passed."""

    exits_by_itself = True

    def __init__(self, policy, most_texts=1 << 16):
        super().__init__(False, most_texts)
        self.policy = policy

    def embed(self, tokens):
        return super().embed(tokens), 0

    def decides(self, policy):
        return policy == self.policy

    def gather(self, parts):
        assert len({passed for (_, passed), _ in parts}) == 1
        return super().gather([(texts, rows) for (texts, _), rows in parts]), parts[0][0][1]

    def pass_alone(self, tokens, levels, max_depth):
        return self.pass_exits(self.embed(tokens), levels, max_depth, enough=1)

    def pass_exits(self, state, levels, max_depth, enough):
        """Replay the policy; the call stops behind the first exit at which fewer than `enough` texts stay."""
        texts, passed = state
        assert len(texts) <= self.most_texts
        logits = np.stack([self.logits_at(texts, number) for number in range(len(LAYERS))], axis=1)
        decisions = self.policy.decide(Trace(logits, exit_layers=LAYERS))
        assert (decisions.exit >= passed).all()
        staying = [(decisions.exit > number).sum() for number in range(len(LAYERS))]
        stopped = next(number for number in range(passed, len(LAYERS)) if staying[number] < enough)
        left, stay = (decisions.exit <= stopped).nonzero()[0], (decisions.exit > stopped).nonzero()[0]
        answers = decisions.answer[left], decisions.probability[left], logits[left, decisions.exit[left]]
        if not len(stay):
            return Passage(left, decisions.exit[left], *answers)
        return Passage(left, decisions.exit[left], *answers, stay, (texts, stopped + 1), stay, stopped + 1)


def tokenize(texts):
    """Make as many tokens of a text as it has words; the first tells texts apart."""
    return {"input_ids": [[crc32(repr(text).encode()) % 10_000] * len(str(text).split()) for text in texts]}


def numbers_model():
    """Return a model that is ready to read texts."""
    return LoadedModel(Numbers(), tokenize, ["yes", "no"])
