"""transformers.Trainer with an objective over all exits, learning rates of their own for heads, and a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import get_length_grouped_indices

from exitpoll.data.progress import OnProgress, Progress
from exitpoll.decide.metrics import METRICS, predictions
from exitpoll.errors import DivergedError
from exitpoll.files import read_json
from exitpoll.models.losses import exit_losses
from exitpoll.training.journal import Journal
from exitpoll.training.objectives import Loss

Score = Callable[[EvalPrediction], dict[str, Any]]


def processes() -> PartialState:
    """Tell how many processes train together and which one this is; under torchrun on processors, too."""
    return PartialState(cpu=not torch.accelerator.is_available())


class LengthSampler(Sampler):
    """Texts of like length together, in an order that follows from seed and epoch alone, so that it can be resumed."""

    def __init__(self, lengths: NDArray, batch_size: int, seed: int) -> None:
        """Note what the order follows from.

        Args:
            lengths: Tokens of each text, (texts,).
            batch_size: Texts in a batch.
            seed: Seed of the order.
        """
        self.lengths = lengths.tolist()
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; loaders call this."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Give the row numbers in this epoch's order."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))


class Interruptions(TrainerCallback):
    """Scores, logs and saves together, so many times in an epoch and after the last step."""

    def __init__(self, per_epoch: int) -> None:
        """Choose how often.

        Args:
            per_epoch: Interruptions in an epoch.
        """
        self.per_epoch = per_epoch
        self.steps: set[int] = set()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Work out the steps."""
        count = min(self.per_epoch * state.num_train_epochs, state.max_steps)
        self.steps = {max(1, round(state.max_steps * number / count)) for number in range(1, count + 1)}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Ask for it all where it is time."""
        if state.global_step in self.steps:
            control.should_log = control.should_evaluate = control.should_save = True
        return control


class Reports(TrainerCallback):
    """Tells of every step."""

    def __init__(self, report: Callable[[], None]) -> None:
        """Choose whom to tell.

        Args:
            report: Called after every step.
        """
        self.report = report

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Tell."""
        self.report()


class ExitTrainer(Trainer):
    """Trains what gives exit logits: a whole model, or heads alone."""

    def __init__(
        self,
        *,
        objective: Loss,
        between: Loss | None,
        head_learning_rate: float,
        journal: Journal,
        on_progress: OnProgress,
        **trainer_arguments: Any,
    ) -> None:
        """Add to a Trainer what it lacks.

        Args:
            objective: The loss over all exits.
            between: What takes its place at every other step, if anything does.
            head_learning_rate: Highest learning rate of the heads.
            journal: Writes down what the batches show.
            on_progress: Called after every step and every scoring.
            **trainer_arguments: Trainer's own.
        """
        super().__init__(**trainer_arguments)
        self.objective = objective
        self.between = between
        self.head_learning_rate = head_learning_rate
        self.journal = journal
        self.on_progress = on_progress
        self.last_loss: float | None = None
        self.exit_scores: Sequence[float] | None = None
        self.add_callback(Reports(self._report))
        self.model_accepts_loss_kwargs = False

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Give heads their own learning rate, and biases and norms no weight decay."""
        optimizer_class, arguments = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        self.optimizer: torch.optim.Optimizer = optimizer_class(self._parameter_groups(arguments["lr"]), **arguments)
        return self.optimizer

    def _parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Group what is trained by learning rate and weight decay."""
        decayed = set(self.get_decay_parameter_names(self.model))
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                rate = self.head_learning_rate if name.startswith("heads.") else learning_rate
                decay = self.args.weight_decay if name in decayed else 0.0
                groups.setdefault((rate, decay), []).append(parameter)
        return [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthSampler:
        """Sample by length, resumably."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        return LengthSampler(dataset.lengths, self.args.train_batch_size, self.args.seed)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Put every exit's logits through the objective."""
        labels = inputs["labels"]
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        loss = self._objective_of(model)(outputs.exit_logits, labels)
        if model.training:
            self._look_at(loss, outputs.exit_logits, labels)
        return (loss, outputs) if return_outputs else loss

    def _objective_of(self, model: nn.Module) -> Loss:
        """Choose the loss of this step; scoring always takes that over all exits."""
        if self.between is not None and model.training and self.state.global_step % 2 == 1:
            return self.between
        return self.objective

    def _look_at(self, loss: Tensor, exit_logits: Tensor, labels: Tensor) -> None:
        """Write a training batch down; stop where the loss is no number any more."""
        self.last_loss = loss.item()
        if not np.isfinite(self.last_loss):
            raise self._diverged(f"the loss is {self.last_loss}")
        self.journal.see(exit_logits.detach(), labels, self.last_loss)

    def _report(self) -> None:
        """Say where the training stands."""
        step, steps = self.state.global_step, self.state.max_steps
        self.on_progress(Progress(self.journal.stage, step, steps, self.last_loss, self.exit_scores))

    def _diverged(self, what: str) -> DivergedError:
        """Say where a training went wrong and what is left of it."""
        rate = max(self.lr_scheduler.get_last_lr())
        good = last_checkpoint(Path(self.args.output_dir))
        kept = f"the last good checkpoint is {good}" if good else "no checkpoint had been written yet"
        step = self.state.global_step + 1
        advice = "train again with lower learning rates and --overwrite" if step > 1 else "is the encoder sound?"
        return DivergedError(f"{what} at step {step} with learning rates up to {rate:.2g}; {kept}; {advice}")

    def evaluate(self, *arguments: Any, **named: Any) -> dict[str, float]:
        """Score the calibration split and write the journal's line."""
        metrics = super().evaluate(*arguments, **named)
        scores = {name: metrics[f"eval_{name}"] for name in SCORE_NAMES}
        if not np.isfinite(metrics["eval_loss"]):
            raise self._diverged("the calibration split's loss is no number")
        self.exit_scores = scores["exit_scores"]
        if self.is_world_process_zero():
            self.journal.write(
                step=self.state.global_step,
                epoch=self.state.epoch or 0.0,
                learning_rate=self.lr_scheduler.get_last_lr()[0],
                scores=scores,
            )
        self._report()
        return metrics


SCORE_NAMES = ("exit_scores", "exit_accuracies", "exit_losses", "mean_score", "last_score", "mean_loss")


def scorer(metric: str, problem_type: str) -> Score:
    """Make what scores every exit on a split.

    Args:
        metric: The task's metric.
        problem_type: As in transformers.

    Returns:
        A function for Trainer's `compute_metrics`.
    """

    def score(predicted: EvalPrediction) -> dict[str, Any]:
        _, exit_logits = predicted.predictions
        return exit_scores(exit_logits, predicted.label_ids, metric, problem_type)

    return score


def exit_scores(logits: NDArray, labels: NDArray, metric: str, problem_type: str) -> dict[str, Any]:
    """Score every exit.

    Args:
        logits: (texts, exits, classes)
        labels: As in Texts.
        metric: The task's metric.
        problem_type: As in transformers.

    Returns:
        Scores, accuracies (None for regression) and losses by exit, and their means.
    """
    answers = [predictions(logits[:, number], problem_type) for number in range(logits.shape[1])]
    scores = [METRICS[metric](labels, answer) for answer in answers]
    accuracies = None if problem_type == "regression" else [METRICS["accuracy"](labels, answer) for answer in answers]
    losses = exit_losses(torch.from_numpy(logits), torch.from_numpy(labels), problem_type=problem_type).mean(dim=0)
    return {
        "exit_scores": scores,
        "exit_accuracies": accuracies,
        "exit_losses": losses.tolist(),
        "mean_score": float(np.mean(scores)),
        "last_score": scores[-1],
        "mean_loss": losses.mean().item(),
    }


def last_checkpoint(folder: Path) -> Path | None:
    """Find the newest whole checkpoint; one that a kill cut short lacks its state, which is written last.

    Args:
        folder: Where a Trainer keeps its checkpoints.

    Returns:
        The checkpoint's folder, or None.
    """
    whole = [path for path in folder.glob("checkpoint-*") if path.name.split("-")[1].isdecimal() and _is_whole(path)]
    return max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)


def _is_whole(checkpoint: Path) -> bool:
    """Whether a checkpoint has all its files, the last one written in full."""
    names = {path.name for path in checkpoint.iterdir()}
    state = read_json(checkpoint / "trainer_state.json")
    return bool(state) and {"model.safetensors", "optimizer.pt", "scheduler.pt"} <= names
