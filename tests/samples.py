"""Traces and settings to test strategies on."""

from __future__ import annotations

from typing import Any

import numpy as np

from exitpoll.decide.certificate import Certificate, Guarantee, Source
from exitpoll.decide.fits import FEATURES
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.trace import Trace

_RISES = [-1.0 if name == "entropy" else 0.5 for name in FEATURES]  # surer means more
SETTINGS: dict[str, dict[str, Any]] = {
    "hybrid": {
        "policies": [
            {"strategy": "votes", "threshold": 1.5, "settings": {"k": 0.5}},
            {"strategy": "entropy", "threshold": 0.4},
        ]
    },
    "learned": {"towards": "agreement", "coefficients": [_RISES] * 24, "intercepts": [-2.0] * 24},
}


def settings_of(name, exits=24):
    """Settings without which a strategy cannot be asked."""
    settings = SETTINGS.get(name, {})
    return {key: value[:exits] if key in ("coefficients", "intercepts") else value for key, value in settings.items()}


def certified(goal=None, **source):
    """A certificate that names the model, runtime or texts it is for."""
    return Certificate(goal or Guarantee(), 77, 1.5, Source(**source))


def random_trace(seed, texts=60, exits=4, classes=3, clarity=1.5):
    """Exits that lean towards the label."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(classes, size=texts)
    logits = generator.normal(size=(texts, exits, classes)) + clarity * np.eye(classes)[labels][:, None]
    return Trace(logits, labels)


def multi_label_trace(seed, texts=60, exits=4, classes=3):
    """Exits that lean towards every label of a text."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(2, size=(texts, classes))
    logits = generator.normal(size=(texts, exits, classes)) + 1.5 * (2 * labels[:, None] - 1)
    return Trace(logits, labels, about={"problem_type": MULTI_LABEL})


def settling_trace(seed, texts=1000, exits=12):
    """Scores of pairs, from 0 to 5, that settle early for some pairs and late for others."""
    generator, numbers = np.random.default_rng(seed), np.arange(1, exits + 1)
    gold = generator.uniform(0, 5, size=texts)
    final = gold + generator.normal(size=texts, scale=0.7)
    settled_at = np.minimum(generator.geometric(0.2, size=(texts, 1)), exits)
    scale = 0.08 * (numbers < exits) + 0.5 * np.sqrt(np.maximum(settled_at - numbers, 0))  # (texts, exits)
    values = final[:, None] + scale * generator.normal(size=(texts, exits))
    return Trace(values[..., None], gold, about={"problem_type": REGRESSION})


def regression_trace(seed, texts=60, exits=4):
    """Exits that come closer and closer to a value."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=texts)
    noise = generator.normal(size=(texts, exits)) / np.arange(1, exits + 1)
    return Trace((values[:, None] + noise)[..., None], values, about={"problem_type": REGRESSION})
