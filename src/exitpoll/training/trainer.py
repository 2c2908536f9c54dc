"""transformers.Trainer with a loss over all exits, separate learning rates for heads, and a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Sampler
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import get_length_grouped_indices

from exitpoll.data.progress import OnProgress, Progress
from exitpoll.errors import DivergedError
from exitpoll.files import read_json
from exitpoll.models.folder import SplitScores
from exitpoll.models.model import EarlyExitOutput
from exitpoll.models.tokenizer import TokenizedTexts
from exitpoll.training import ranks
from exitpoll.training.heads_only import FrozenTexts
from exitpoll.training.journal import Journal
from exitpoll.training.objectives import Loss
from exitpoll.training.scores import score_exits

NGRAMS = "heads.0.ngrams.weight"  # the table of exit 0
SCORE_NAMES = tuple(SplitScores.__annotations__)
ToLabels = Callable[[NDArray], NDArray]


class LengthSampler(Sampler[int]):
    """Groups texts of similar length, in an order that depends on seed and epoch only, so that it can be resumed."""

    def __init__(self, lengths: NDArray, batch_size: int, seed: int) -> None:
        """Set what the order depends on.

        Args:
            lengths: Number of tokens of every text, (texts,).
            batch_size: Texts in a batch.
            seed: Seed of the order.
        """
        self.lengths = lengths.tolist()
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; called by data loaders."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the row numbers in the order of this epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))


class EvaluateAndSave(TrainerCallback):
    """Evaluates, logs and saves at the same steps: a number of times in an epoch, and after the last step."""

    def __init__(self, per_epoch: int) -> None:
        """Set how often.

        Args:
            per_epoch: Evaluations in an epoch.
        """
        self.per_epoch = per_epoch
        self.steps: set[int] = set()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Compute the steps."""
        count = min(self.per_epoch * state.num_train_epochs, state.max_steps)
        self.steps = {max(1, round(state.max_steps * number / count)) for number in range(1, count + 1)}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> TrainerControl:
        """Request evaluation, log and checkpoint if this is one of the steps."""
        if state.global_step in self.steps:
            control.should_log = control.should_evaluate = control.should_save = True
        return control


class AfterStep(TrainerCallback):
    """Calls a function after every step."""

    def __init__(self, call: Callable[[], None]) -> None:
        """Set the function.

        Args:
            call: Called after every step.
        """
        self.call = call

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Call it."""
        self.call()


class BeforeEpoch(TrainerCallback):
    """Calls a function before every epoch, or what is left of it."""

    def __init__(self, call: Callable[[], None]) -> None:
        """Set the function.

        Args:
            call: Called before every epoch.
        """
        self.call = call

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Call it."""
        self.call()


class ExitTrainer(Trainer):
    """Trains a module that returns exit logits: a whole model, or only its heads."""

    def __init__(
        self,
        *,
        objective: Loss,
        alternate: Loss | None,
        to_labels: ToLabels,
        head_learning_rate: float,
        ngram_learning_rate: float,
        journal: Journal,
        on_progress: OnProgress,
        **trainer_arguments: object,
    ) -> None:
        """Extend a Trainer.

        Args:
            objective: The loss over all exits.
            alternate: The loss of every other step, if it is another.
            to_labels: Turns what the heads learn into labels, for the journal.
            head_learning_rate: Peak learning rate of the heads.
            ngram_learning_rate: Peak learning rate of the n-gram table of exit 0.
            journal: Logs training batches and evaluations.
            on_progress: Called after every step and every evaluation.
            **trainer_arguments: Arguments of transformers.Trainer.
        """
        super().__init__(**trainer_arguments)
        self.objective = objective
        self.alternate = alternate
        self.to_labels = to_labels
        self.head_learning_rate = head_learning_rate
        self.ngram_learning_rate = ngram_learning_rate
        self.journal = journal
        self.on_progress = on_progress
        self.mean_loss: float | None = None  # over the batches since the last evaluation
        self.exit_scores: Sequence[float] | None = None
        self.sampler: LengthSampler | None = None  # until training starts
        self.add_callback(BeforeEpoch(self._set_epoch))
        self.add_callback(AfterStep(self._report))
        self.model_accepts_loss_kwargs = False

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer: heads have their own learning rate, biases and norms no weight decay."""
        optimizer_class, arguments = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        self.optimizer: torch.optim.Optimizer = optimizer_class(self._parameter_groups(arguments["lr"]), **arguments)
        return self.optimizer

    def _parameter_groups(self, learning_rate: float) -> list[dict[str, object]]:
        """Group the trained parameters by learning rate and weight decay."""
        decayed = set(self.get_decay_parameter_names(self.model))
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                rate, decay = learning_rate, self.args.weight_decay if name in decayed else 0.0
                if name == NGRAMS:
                    rate, decay = self.ngram_learning_rate, 0.0  # decay would outweigh the gradients of rare rows
                elif name.startswith(("heads.", "attentions.")):
                    rate = self.head_learning_rate
                groups.setdefault((rate, decay), []).append(parameter)
        return [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]

    def _get_train_sampler(self, train_dataset: TokenizedTexts | FrozenTexts | None = None) -> LengthSampler:
        """Return a sampler that groups by length and can be resumed."""
        dataset = self.train_dataset if train_dataset is None else train_dataset
        self.sampler = LengthSampler(dataset.lengths, self._batch_size, self.args.seed)
        return self.sampler

    def _set_epoch(self) -> None:
        """Tell the sampler the epoch: where several processes resume in mid-epoch, data loaders do not reach it."""
        if self.sampler is not None:
            self.sampler.set_epoch(self.state.global_step // self._steps_per_epoch)

    @property
    def _steps_per_epoch(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.train_dataset) // self._batch_size)

    @property
    def _batch_size(self) -> int:
        """Texts in a batch of all processes together."""
        return self.args.train_batch_size * self.args.world_size

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, EarlyExitOutput]:
        """Compute the loss over the logits of all exits."""
        labels = inputs["labels"]
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        if model.training:
            loss = self._training_loss(outputs.exit_logits, labels)
        else:
            loss = self.objective(outputs.exit_logits, labels)
        return (loss, outputs) if return_outputs else loss

    def _training_loss(self, exit_logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of a step, whose mean over the processes is that of one process with the whole batch."""
        if self.args.world_size == 1:
            loss = self._loss_of_step()(exit_logits, labels)
        else:
            texts = self._texts_of_step()
            own = ranks.own_texts(texts, self.args.train_batch_size)  # the rest fills the last batch of an epoch up
            exit_logits, labels = exit_logits[:own], labels[:own]
            share = own * self.args.world_size / texts
            loss = share * self._loss_of_step()(exit_logits, labels) if own else exit_logits.sum()  # 0, with gradients
        self._log_batch(loss, exit_logits, labels)
        return loss

    def _texts_of_step(self) -> int:
        """Return how many texts this step trains on; fewer than usual in the last step of an epoch."""
        before = self.state.global_step % self._steps_per_epoch * self._batch_size
        return min(self._batch_size, len(self.train_dataset) - before)

    def _loss_of_step(self) -> Loss:
        """Return the loss of this step; evaluation always uses the one over all exits."""
        if self.alternate is not None and self.state.global_step % 2 == 1:
            return self.alternate
        return self.objective

    def _log_batch(self, loss: Tensor, exit_logits: Tensor, labels: Tensor) -> None:
        """Add a training batch to the journal; stop if the loss is NaN or infinite."""
        value = ranks.mean_of(loss)
        if not np.isfinite(value):
            raise self._diverged(f"the loss is {value}")
        labels = torch.from_numpy(self.to_labels(labels.cpu().numpy())).to(labels.device)
        self.journal.add_batch(exit_logits.detach(), labels, value)
        self.mean_loss = self.journal.mean_loss

    def _report(self) -> None:
        """Report progress."""
        step, steps = self.state.global_step, self.state.max_steps
        self.on_progress(Progress(self.journal.stage, step, steps, self.mean_loss, self.exit_scores))

    def _diverged(self, problem: str) -> DivergedError:
        """Return an error that names the step, the learning rate and the last good checkpoint."""
        rate = max(self.lr_scheduler.get_last_lr())
        checkpoint = last_checkpoint(Path(self.args.output_dir))
        kept = f"the last good checkpoint is {checkpoint}" if checkpoint else "there is no checkpoint yet"
        step = self.state.global_step + 1
        advice = (
            "train again with lower learning rates, and overwrite" if step > 1 else "check the weights of the encoder"
        )
        message = f"{problem} at step {step} with learning rates up to {rate:.2g}; {kept}; {advice}"
        return DivergedError(message, options=["overwrite"])

    def _save_rng_state(self, output_dir: str) -> None:
        """Save the random generators of every process, between the first file of a checkpoint and the last."""
        ranks.processes().wait_for_everyone()  # until the first has made the folder
        super()._save_rng_state(output_dir)
        ranks.processes().wait_for_everyone()

    def evaluate(self, *arguments: object, **named: object) -> dict[str, float]:
        """Score the calibration split and write a line of the journal."""
        metrics = super().evaluate(*arguments, **named)
        scores = {name: metrics[f"eval_{name}"] for name in SCORE_NAMES}
        if not np.isfinite(metrics["eval_loss"]):
            raise self._diverged(f"the loss on the calibration split is {metrics['eval_loss']}")
        self.exit_scores = scores["exit_scores"]
        self.journal.write(
            step=self.state.global_step,
            epoch=self.state.epoch or 0.0,
            learning_rate=self.lr_scheduler.get_last_lr()[0],
            scores=scores,
        )
        self._report()
        return metrics


def metrics_by(metric: str, problem_type: str, to_labels: ToLabels) -> Callable[[EvalPrediction], dict[str, object]]:
    """Return a function that scores every exit, for Trainer's `compute_metrics`.

    Args:
        metric: The task's metric.
        problem_type: As in transformers.
        to_labels: Turns what the heads learn into labels.

    Returns:
        The function; its result has the fields of `SplitScores`.
    """

    def compute_metrics(predicted: EvalPrediction) -> dict[str, object]:
        _, exit_logits = predicted.predictions
        return dict(score_exits(exit_logits, to_labels(predicted.label_ids), metric, problem_type))

    return compute_metrics


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint; one that was interrupted lacks its state, which is written last.

    Args:
        folder: Where a Trainer saves its checkpoints.

    Returns:
        The checkpoint's folder, or None.
    """
    complete = [
        path for path in folder.glob("checkpoint-*") if path.name.split("-")[1].isdecimal() and _is_complete(path)
    ]
    return max(complete, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Return the step at which a checkpoint was saved."""
    return int(checkpoint.name.split("-")[1])


def _is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint has all its files, and the last one in full."""
    names = [path.name for path in checkpoint.iterdir()]  # files, or folders where the weights are sharded
    parts_exist = all(any(part in name for name in names) for part in ("model", "optimizer", "scheduler"))
    return parts_exist and bool(read_json(checkpoint / "trainer_state.json"))
