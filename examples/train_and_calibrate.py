"""Train a classifier with early exits, guarantee a bound on their cost, and check it on held-out texts.

python examples/train_and_calibrate.py --out reviews

It uses the encoder and the movie reviews of the extra `demo`, and takes a few minutes on a CPU.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

import exitpoll
from exitpoll.models.pretrained import encoder_folder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, required=True, help="the model folder to write")
parser.add_argument("--texts", type=int, default=6000, help="use at most this many texts of every split")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--max-disagreement", type=float, default=0.02, help="share of answers that may differ")
arguments = parser.parse_args()


def first(texts: exitpoll.Texts) -> exitpoll.Texts:
    """Return as many texts as the command line asks for."""
    return texts.select(np.arange(min(arguments.texts, len(texts))))


# 1. Labelled texts in three splits: train, calibration, test.
splits = exitpoll.load_splits("embedded")
splits = replace(splits, train=first(splits.train), calibration=first(splits.calibration), test=first(splits.test))

# 2. An encoder with a head after every layer, trained by the loss of Sun et al. (2021).
model = exitpoll.EarlyExitModel.from_encoder("embedded", labels=splits.label_names)
tokenizer = AutoTokenizer.from_pretrained(encoder_folder("embedded"))
settings = exitpoll.TrainingSettings(method="ensemble", epochs=arguments.epochs, logs_per_epoch=1)
scores = exitpoll.train(model, tokenizer, splits, arguments.out, settings).test_scores
print("accuracy of every exit:", " ".join(f"{100 * score:.1f}" for score in scores))

# 3. The logits of every exit, recorded once. Everything below needs no model.
loaded, about = exitpoll.load_model(arguments.out), {"data": "embedded", "metric": splits.metric}
calibration = exitpoll.record(loaded, splits.calibration, f"{arguments.out}.calibration.safetensors", about=about)
test = exitpoll.record(loaded, splits.test, f"{arguments.out}.test.safetensors", about=about)

# 4. The fastest policy that is guaranteed to answer as the full model does, nearly always.
policy = exitpoll.calibrate(calibration, max_disagreement=arguments.max_disagreement)
policy.save(arguments.out / "policy.json")
print("policy:", policy.name, "| guarantee:", policy.certificate.guarantee or "none possible with these texts")

# 5. The same policy on texts that nothing was chosen on.
ours, full = exitpoll.evaluate(test, policy).rows[:2]
print(f"test accuracy {100 * ours.score.value:.1f} % against {100 * full.score.value:.1f} % of the full model")
print(f"{ours.speedup:.2f} × fewer layers, {100 * ours.differs:.1f} % of answers differ")
