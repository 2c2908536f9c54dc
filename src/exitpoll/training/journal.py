"""What a training records at every logging step, one JSON line each: the seed of the paper's analysis figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from exitpoll.decide.metrics import REGRESSION, SINGLE_LABEL
from exitpoll.models.losses import closest_earlier


class Journal:
    """Watches the training batches and writes a line at every logging step.

    A line holds, beside step, loss and learning rate: each exit's loss and score on the calibration split; `closest`,
    how often each earlier head j was nearest to head i, as counts (exits, exits); and `alpha`, λ·p_c for each exit
    from the second on, where p_c is what the nearest earlier head gives the right class (the paper's dynamic label
    smoothing). Nearest is meant as the diversity loss is told to look for it. Counts and means are over all batches
    since the line before; where several processes train together, over those of the first.
    """

    def __init__(
        self,
        path: Path,
        *,
        stage: str,
        problem_type: str,
        diversity_weight: float = 0.0,
        closest: str = "text",
        neighbors: int | None = None,
    ) -> None:
        """Start with nothing seen.

        Args:
            path: The file to append to.
            stage: Which stage of the schedule this is.
            problem_type: As in transformers.
            diversity_weight: λ.
            closest: As in `diversity`.
            neighbors: As in `diversity`.
        """
        self.path = path
        self.stage = stage
        self.problem_type = problem_type
        self.diversity_weight = diversity_weight
        self.nearest = partial(closest_earlier, closest=closest, neighbors=neighbors, problem_type=problem_type)
        self._forget()

    def _forget(self) -> None:
        """Begin a new line."""
        self.texts = 0
        self.batches = 0
        self.loss = 0.0
        self.counts: Tensor | None = None  # (exits, exits) counts: head i, nearest head j
        self.gold: Tensor | None = None  # (exits - 1,) sums of p_c

    @torch.no_grad()
    def see(self, logits: Tensor, labels: Tensor, loss: float) -> None:
        """Take in one training batch.

        Args:
            logits: (texts, exits, classes)
            labels: (texts,), or (texts, classes) for multi-label.
            loss: What the objective made of them.
        """
        self.batches += 1
        self.texts += len(logits)
        self.loss += loss
        if self.problem_type == REGRESSION or logits.shape[1] < 2:
            return
        nearest = self.nearest(logits)  # (texts, exits - 1)
        counts = _count(nearest, logits.shape[1])
        self.counts = counts if self.counts is None else self.counts + counts
        if self.problem_type == SINGLE_LABEL:
            given = logits.float().softmax(dim=-1)[torch.arange(len(labels)), :, labels]  # (texts, exits)
            gold = given.gather(1, nearest).sum(dim=0)
            self.gold = gold if self.gold is None else self.gold + gold

    def write(self, *, step: int, epoch: float, learning_rate: float, scores: Mapping[str, Any]) -> None:
        """Append a line and begin the next.

        Args:
            step: Training steps done.
            epoch: Epochs done.
            learning_rate: The encoder's learning rate now.
            scores: What scoring the calibration split gave.
        """
        line = {
            "stage": self.stage,
            "step": step,
            "epoch": round(epoch, 4),
            "learning_rate": learning_rate,
            "train_loss": self.loss / max(self.batches, 1),
            **scores,
            "closest": None if self.counts is None else self.counts.tolist(),
            "alpha": None if self.gold is None else (self.gold * self.diversity_weight / self.texts).tolist(),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._forget()

    def rewind(self, step: int) -> None:
        """Drop this stage's lines after a step, before the training goes on from there.

        Args:
            step: The step of the checkpoint to go on from.
        """
        if not self.path.exists():
            return
        lines = [
            line
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines()
            if self._stays(line, step)
        ]
        self.path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def _stays(self, line: str, step: int) -> bool:
        """Whether a line speaks of what was done before a step; a line cut short by a kill does not."""
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            return False
        return isinstance(entry, dict) and (entry["stage"] != self.stage or entry["step"] <= step)


def _count(nearest: Tensor, exits: int) -> Tensor:
    """Count how often head j was nearest to head i: (exits, exits)."""
    later = torch.arange(1, exits, device=nearest.device)
    cells = (later * exits + nearest).flatten()
    return torch.bincount(cells, minlength=exits * exits).reshape(exits, exits)
