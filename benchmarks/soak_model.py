"""For the soak: tiny models made on the spot, with policies, and one of them with a profile of its calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from common import make_encoder, make_texts
from exitpoll import Engine, Policy, Prediction, load_model
from exitpoll.data.splits import Texts
from exitpoll.decide.certificate import Certificate, Source, Speedup
from exitpoll.decide.numerics import softmax
from exitpoll.decide.shift import Histogram, Profile
from exitpoll.engine.record import exit_logits
from exitpoll.export.export import export_model
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import load_tokenizer

LABELS = ["red", "green", "blue"]
NEVER = "never"  # a policy that asks every exit, one call after another, and never leaves before the last
UNSURE = "unsure"  # the same, but the graph decides past several exits in one call, as for the default


def make_model(folder: Path, layers: int = 4, width: int = 64) -> Path:
    """Write the export of a random model, with policies that let texts leave at all exits."""
    encoder = make_encoder(folder / "encoder", layers=layers, width=width)
    model = EarlyExitModel.from_encoder(str(encoder), labels=LABELS)
    model.save_pretrained(folder / "tiny")
    load_tokenizer(encoder).save_pretrained(folder / "tiny")
    export = folder / "tiny" / "onnx"
    export_model(folder / "tiny", export, policy_for=lambda loaded: Policy("max_prob", 0.9))
    loaded = load_model(export, threads=1)
    tokens = loaded.tokenize(Texts(make_texts(200, 12)))
    shares = softmax(exit_logits(loaded.runtime, tokens)).max(axis=-1)  # (texts, exits)
    surest = shares[:, :-1].max(axis=1)  # before the last exit
    (export / "policies").mkdir()
    Policy("max_prob", float(np.quantile(surest, 0.3))).save(export / "policy.json")  # 70 % leave early
    Policy("max_prob", float(np.quantile(surest, 0.05))).save(export / "policies" / "fast.json")
    Policy("max_prob", 0.9999).save(export / "policies" / f"{UNSURE}.json")
    Policy("votes", 99.0).save(export / "policies" / f"{NEVER}.json")
    return export


def certify(model: Path, texts: Sequence[str]) -> list[Prediction]:
    """Let the default policy carry a profile of texts, as a calibration does.

    Args:
        model: What `make_model` wrote.
        texts: The texts.

    Returns:
        What the policy says about them.
    """
    policy, loaded = Policy.load(model / "policy.json"), load_model(model, threads=1)
    rows = Engine(loaded, policy)(texts)
    left = Counter(row.depth for row in rows)
    layers = loaded.runtime.exit_layers
    profile = Profile(
        {layer: left[layer] for layer in layers},
        Histogram.of(np.array([row.probability for row in rows])),
        Histogram.of(np.array([row.tokens for row in rows], dtype=np.float64)),
    )
    speedup = layers[-1] * len(rows) / sum(row.depth for row in rows)
    certificate = Certificate(Speedup(1.0), len(rows), speedup, Source(), profile=profile)
    Policy("max_prob", policy.threshold, certificate=certificate).save(model / "policy.json")
    return rows
