"""The cost of the ensemble loss: value and gradient as a share of a training step. Limit: 2 %.

python benchmarks/objective_cost.py
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import BertConfig, BertForSequenceClassification

from common import time_alternately, write_results
from exitpoll.models.losses import ensemble

EXITS, TEXTS, TOKENS = 12, 32, 32
CLASSES = (2, 6, 20, 150)
BAR = 0.02


def main() -> None:
    """Time a step of a 12-layer, 384-wide encoder and the loss for several numbers of classes alternately."""
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    config = BertConfig(num_hidden_layers=12, hidden_size=384, num_attention_heads=12, intermediate_size=1536)
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(5, config.vocab_size, (TEXTS, TOKENS))
    labels = torch.zeros(TEXTS, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        model(ids, labels=labels).loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def loss_of(classes: int) -> None:
        logits = torch.randn(TEXTS, EXITS, classes, requires_grad=True)
        ensemble(logits, labels, diversity_weight=0.2).backward()

    losses = {f"{classes} classes": partial(loss_of, classes) for classes in CLASSES}
    seconds = time_alternately({"step": step, **losses}, rounds=12)
    shares = {name: seconds[name] / seconds["step"] for name in losses}
    write_results(
        "objective_cost",
        {
            "texts": TEXTS,
            "exits": EXITS,
            "tokens": TOKENS,
            "share_of_a_step": {name: round(share, 5) for name, share in shares.items()},
            "bar": BAR,
            "within_bar": max(shares.values()) <= BAR,
        },
    )


if __name__ == "__main__":
    main()
