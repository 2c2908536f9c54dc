"""A runtime made of numbers: it needs neither weights nor torch, and starts at once in another process."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from exitpoll.engine.runtime import LoadedModel

LAYERS = (1, 2, 4, 5, 6)


class Numbers:
    """A runtime whose states are the first tokens of the texts, from which its heads compute logits."""

    exit_layers, classes, problem_type = LAYERS, 2, "single_label_classification"
    name, packages, fingerprint, threads, device = "numbers", (), "0123456789abcdef", 1, "cpu"

    def __init__(self, shares_layers=False, batch_size=1 << 16):
        self.shares_layers, self.batch_size = shares_layers, batch_size

    def embed(self, tokens):
        return np.array([ids[0] for ids in tokens["input_ids"]])

    def advance(self, state, layers):
        assert len(state) <= self.batch_size
        assert set(layers) <= set(range(1, LAYERS[-1] + 1))
        return state

    def logits_at(self, state, exit_number, rows=None):
        clear = ((state if rows is None else state[rows]) * 2654435761 + exit_number * 40503) % 1000 / 250
        return np.stack([clear, -clear], axis=-1).astype(np.float32)

    def gather(self, parts):
        return np.concatenate([state if rows is None else state[rows] for state, rows in parts])


def tokenize(texts):
    """Make as many tokens of a text as it has words; the first tells texts apart."""
    return {"input_ids": [[crc32(repr(text).encode()) % 10_000] * len(str(text).split()) for text in texts]}


def numbers_model():
    """Return a model that is ready to read texts."""
    return LoadedModel(Numbers(), tokenize, ["yes", "no"])
