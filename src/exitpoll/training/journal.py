"""The journal of a training: a JSON line for every evaluation, from which the paper's analysis figures are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from exitpoll.decide.metrics import REGRESSION, SINGLE_LABEL
from exitpoll.files import write_text
from exitpoll.models.losses import closest_earlier
from exitpoll.training import ranks


class Journal:
    """Accumulates statistics of the training batches and writes a line at every evaluation.

    Beside step, loss and learning rate, a line holds: loss and score of every exit on the calibration split; `closest`,
    how often head j was the nearest earlier head of head i, as counts (exits, exits); and `alpha`, λ·p_c for the exits
    from the second on, where p_c is the probability that the nearest earlier head gives the right class (the dynamic
    label smoothing of Sun et al. (2021), Eq. 19). The nearest head is the one that the diversity loss takes. Counts and
    means are over all batches since the line before, of all processes.
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
        """Start with no batches.

        Args:
            path: The file to append to.
            stage: The stage of the schedule.
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
        self._reset()

    def _reset(self) -> None:
        """Begin a new line."""
        self.texts = 0
        self.batches = 0
        self.loss = 0.0  # sum over batches
        self.counts: Tensor | None = None  # (exits, exits) how often head j was nearest to head i
        self.gold: Tensor | None = None  # (exits - 1,) sums of p_c

    @torch.no_grad()
    def add_batch(self, logits: Tensor, labels: Tensor, loss: float) -> None:
        """Add a training batch to the current line.

        Args:
            logits: (texts, exits, classes)
            labels: (texts,), or (texts, classes) for multi-label.
            loss: The loss of the batch, in all processes.
        """
        self.batches += 1
        self.texts += len(logits)
        self.loss += loss
        if self.problem_type == REGRESSION or logits.shape[1] < 2:
            return
        nothing = logits.new_zeros((0, logits.shape[1] - 1), dtype=torch.long)  # in this process
        nearest = self.nearest(logits) if len(logits) else nothing  # (texts, exits - 1)
        counts = _count(nearest, logits.shape[1])
        self.counts = counts if self.counts is None else self.counts + counts
        if self.problem_type == SINGLE_LABEL:
            of_gold = logits.float().softmax(dim=-1)[torch.arange(len(labels)), :, labels]  # (texts, exits)
            gold = of_gold.gather(1, nearest).sum(dim=0)
            self.gold = gold if self.gold is None else self.gold + gold

    @property
    def mean_loss(self) -> float:
        """The mean loss of the batches since the last line; 0 if there are none."""
        return self.loss / max(self.batches, 1)

    def write(self, *, step: int, epoch: float, learning_rate: float, scores: Mapping[str, object]) -> None:
        """Append a line and begin the next; called in all processes, of which the first writes.

        Args:
            step: Number of training steps done.
            epoch: Number of epochs done.
            learning_rate: The current learning rate of the encoder.
            scores: The fields of `SplitScores`, on the calibration split.
        """
        if ranks.processes().num_processes > 1:
            self._gather()
        if ranks.processes().is_main_process:
            self._append(step, epoch, learning_rate, scores)
        self._reset()

    def _gather(self) -> None:
        """Add up the counts of all processes."""
        self.texts = int(ranks.sum_of(torch.tensor(self.texts, device=ranks.processes().device)))
        self.counts = None if self.counts is None else ranks.sum_of(self.counts)
        self.gold = None if self.gold is None else ranks.sum_of(self.gold)

    def _append(self, step: int, epoch: float, learning_rate: float, scores: Mapping[str, object]) -> None:
        """Append a line."""
        line = {
            "stage": self.stage,
            "step": step,
            "epoch": round(epoch, 4),
            "learning_rate": learning_rate,
            "train_loss": self.mean_loss,
            **scores,
            "closest": None if self.counts is None else self.counts.tolist(),
            "alpha": None if self.gold is None else (self.gold * self.diversity_weight / self.texts).tolist(),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def rewind(self, step: int) -> None:
        """Drop the lines of this stage after a step, before training resumes from there.

        Args:
            step: The step of the checkpoint.
        """
        if not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        write_text(self.path, "".join(line + "\n" for line in lines if self._is_kept(line, step)))

    def _is_kept(self, line: str, step: int) -> bool:
        """Return whether a line is of an earlier stage or step; an interrupted line is not."""
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
