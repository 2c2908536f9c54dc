"""train(): from a model and three splits to a model folder, in the stages of a schedule."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase, set_seed

from exitpoll.data.overlap import TextDigest
from exitpoll.data.progress import OnProgress, ignore, shown
from exitpoll.data.splits import Splits
from exitpoll.decide.metrics import REGRESSION
from exitpoll.files import locked, partial_of, publish, write_json, write_text
from exitpoll.models.card import model_card
from exitpoll.models.config import are_unnamed
from exitpoll.models.fingerprint import fingerprint_of, runtime_name
from exitpoll.models.folder import CARD, JOURNAL, TRAINING, SplitScores, TrainingSummary, check_free_for_model
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import TokenizedTexts, full_length, readable_length, tokenize
from exitpoll.training import ranks
from exitpoll.training.checks import are_labelled, check_compatible, check_kinds, with_classes_of
from exitpoll.training.clock import Clock
from exitpoll.training.features import record_logits
from exitpoll.training.labels import name_labels
from exitpoll.training.scores import score_exits
from exitpoll.training.settings import TrainingSettings, fallback_notes
from exitpoll.training.stages import Job, run_stages
from exitpoll.training.work import SECONDS, SPLITS, identity_of, open_work

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class Trained:
    """Result of a training run."""

    folder: Path
    model: EarlyExitModel
    exit_layers: Sequence[int]
    calibration_scores: Sequence[float]  # (exits,) by the metric
    test_scores: Sequence[float]  # (exits,)
    metric: str  # of the task; "agreement" with the last exit if the texts have no labels
    truncated: int  # texts longer than the encoder reads, over all splits
    texts: int  # over all splits
    seconds: float  # in all sessions, if it was interrupted
    notes: Sequence[str]

    def __repr__(self) -> str:
        """Return folder, scores and time in one line."""
        scores = ", ".join(
            f"{layer}: {100 * score:.1f}" for layer, score in zip(self.exit_layers, self.test_scores, strict=True)
        )
        return (
            f"Trained('{self.folder}', test {self.metric} in % after layer {{{scores}}}, "
            f"{self.texts} texts, {self.seconds:.0f} s)"
        )


def train(
    model: EarlyExitModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: Splits,
    out: str | Path,
    settings: TrainingSettings | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    on_progress: OnProgress = ignore,
) -> Trained:
    """Train a model and write its folder atomically.

    While it runs, checkpoints and the journal are kept in `<out>.partial`. From then on denormal numbers, which slow
    CPUs down, are flushed to zero in the whole process. What a reader of the results should know is logged at level
    INFO as soon as it is known, and returned as `notes`. Where torchrun or accelerate launch has started several
    processes, all of them call this: they divide every batch, and the first of them writes and reports.

    Args:
        model: The model to train, in place.
        tokenizer: Its tokenizer.
        splits: The texts to train on, to select checkpoints by and to report scores on. Without labels only the heads
            below a classifier can be trained, and scores are agreement with the last exit.
        out: The folder to write.
        settings: How to train. A model made by `from_classifier` keeps its own head, and only the heads below it are
            trained, unless a schedule is named.
        resume: Resume an interrupted training.
        overwrite: Replace an older model folder, and discard an interrupted training.
        progress: Whether to show progress bars on stderr.
        on_progress: Called after every step and every evaluation.

    Returns:
        The trained model with the scores of every exit.
    """
    out = Path(out).resolve()
    check_kinds(model, tokenizer, splits)
    given = settings or TrainingSettings()
    native_head = model.config.native_head
    preflight(given, out, native_head=native_head, overwrite=overwrite)
    splits, labelled = with_classes_of(model, splits), are_labelled(splits)
    resolved = given.resolved(native_head=native_head, problem_type=splits.problem_type, labelled=labelled)
    check_compatible(model, tokenizer, splits, resolved)
    ranks.split_evenly(resolved.batch_size)
    with ranks.losses_explained(), ExitStack() as stack:
        ranks.first_alone(partial(_lock, out, stack))
        report = stack.enter_context(shown(progress, on_progress)) if ranks.is_first() else ignore
        job = _prepare(model, tokenizer, splits, resolved, partial_of(out), report)
        digest = TextDigest.of(splits.train)
        notes = _log(
            [
                *splits.notes,
                *fallback_notes(given, resolved, splits.problem_type, labelled=labelled),
                *_notes_on(job, digest),
            ]
        )
        job, clock = _open(job, resume=resume, overwrite=overwrite)
        torch.set_flush_denormal(True)
        set_seed(resolved.seed)
        run_stages(job)
        scores = {"calibration": _score(job, job.calibration), "test": _score(job, job.test)}
        notes += _log(_best_exit_notes(job, scores))
        result = _result(out, job, scores, clock.seconds, notes)
        ranks.first_alone(lambda: _write_folder(job, _summary(job, result, scores, digest), out))
    return result


def preflight(settings: TrainingSettings | None, out: Path, *, native_head: bool, overwrite: bool) -> TrainingSettings:
    """Check what can be checked before data and weights are read: the settings and the output folder.

    Args:
        settings: How to train.
        out: The folder to write.
        native_head: Whether a fine-tuned classifier with a head of its own is trained.
        overwrite: Whether an older model folder may be replaced.

    Returns:
        The resolved settings.
    """
    resolved = (settings or TrainingSettings()).resolved(native_head=native_head)
    if ranks.is_first():
        check_free_for_model(out, overwrite=overwrite)
    return resolved


def _lock(out: Path, stack: ExitStack) -> None:
    """Lock the folder to be written until a block ends."""
    out.parent.mkdir(parents=True, exist_ok=True)
    stack.enter_context(locked(out, "train"))


def _prepare(
    model: EarlyExitModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: Splits,
    settings: TrainingSettings,
    work: Path,
    on_progress: OnProgress,
) -> Job:
    """Enter settings into the configuration of the model, which is saved with it, and tokenize the texts."""
    config = model.config
    config.max_length = readable_length(config.encoder, settings.max_length or config.max_length)
    config.layer_drop = settings.layer_drop
    model.to(ranks.processes().device)
    train_texts, calibration, test = (tokenize(getattr(splits, name), tokenizer, config.max_length) for name in SPLITS)
    calibration = calibration.sorted_by_length()
    return Job(model, tokenizer, train_texts, calibration, test, splits, settings, work, on_progress)


def _notes_on(job: Job, digest: TextDigest) -> Iterator[str]:
    """Yield what a reader of the results should know about labels, lengths and texts."""
    config = job.model.config
    yield from name_labels(job.model, job.tokenizer, job.splits, job.train)
    if job.settings.schedule == "exit-zero":
        yield "the head at exit 0 alone is trained: the encoder and all other heads stay as they were"
    if job.train.labels is None:
        yield f"without labels, scores are agreement with the last exit, after layer {config.exit_layers[-1]}"
        if config.native_head:
            yield "exitpoll adopt teaches the heads, certifies, exports and times in one command"
        if config.problem_type != REGRESSION and are_unnamed(config.id2label):
            yield f"the classifier does not name its classes: they stay {', '.join(config.id2label.values()):.60}"
    if config.native_head:
        longest = full_length(config.encoder, job.tokenizer)
        differs = f"where the classifier reads {longest}: its answers on longer texts change"
        compared = "as the classifier does" if config.max_length == longest else differs
        yield f"texts are read up to {config.max_length} tokens, {compared}"
    for name in ("calibration", "test") if job.splits.source is None else ():  # else load_splits has counted them
        overlap = digest.overlap(getattr(job.splits, name))
        if overlap.shared:
            yield f"{overlap.shared} of {overlap.checked} {name} texts are training texts, too"


def _log(notes: Iterable[str]) -> list[str]:
    """Log notes, in the first process."""
    listed = list(notes)
    if ranks.is_first():
        for note in listed:
            logger.info(note)
    return listed


def _open(job: Job, *, resume: bool, overwrite: bool) -> tuple[Job, Clock]:
    """Open the work folder, and keep the time of all sessions there."""
    identity = identity_of(job.model, job.splits, job.settings)
    ranks.first_alone(partial(open_work, job.work, identity, resume=resume, overwrite=overwrite))
    clock = Clock(job.work / SECONDS)
    if ranks.is_first():
        job = replace(job, on_progress=clock.around(job.on_progress))
    return job, clock


def _score(job: Job, texts: TokenizedTexts) -> SplitScores:
    """Score every exit of the trained model on a split; every process runs its part of the texts."""
    part = slice(ranks.processes().process_index, None, ranks.processes().num_processes)
    logits = ranks.sum_of_array(record_logits(job.model, texts, job.tokenizer, part))
    return score_exits(logits, texts.labels, job.splits.metric, job.splits.problem_type)


def _best_exit_notes(job: Job, scores: Mapping[str, SplitScores]) -> Iterator[str]:
    """Yield a note where an earlier exit scores better than the last, on the split that did not choose it too."""
    calibration, test = (scores[name]["exit_scores"] for name in ("calibration", "test"))
    best = calibration.index(max(calibration))
    if calibration[best] > calibration[-1]:
        layers = job.model.config.exit_layers
        place = f"after layer {layers[best]}" if layers[best] else "before the first layer"
        yield (
            f"the exit {place} scores better than the last, after layer {layers[-1]}: "
            f"{100 * calibration[best]:.1f} against {100 * calibration[-1]:.1f} on the calibration split, "
            f"{100 * test[best]:.1f} against {100 * test[-1]:.1f} on the test split; "
            f"the best static depth is {layers[best]} layers"
        )


def _result(out: Path, job: Job, scores: Mapping[str, SplitScores], seconds: float, notes: Sequence[str]) -> Trained:
    """Collect the result."""
    tokenized = (job.train, job.calibration, job.test)
    return Trained(
        folder=out,
        model=job.model,
        exit_layers=job.model.config.exit_layers,
        calibration_scores=scores["calibration"]["exit_scores"],
        test_scores=scores["test"]["exit_scores"],
        metric=job.splits.metric,
        truncated=sum(texts.truncated for texts in tokenized),
        texts=sum(map(len, tokenized)),
        seconds=seconds,
        notes=notes,
    )


def _summary(job: Job, result: Trained, scores: dict[str, SplitScores], digest: TextDigest) -> TrainingSummary:
    """Summarize the training."""
    return TrainingSummary(
        versions={package: version(package) for package in ("exitpoll", "torch", "transformers", "tokenizers")},
        settings=asdict(job.settings),
        source={"fingerprint": fingerprint_of(job.model, job.tokenizer), "runtime": runtime_name(job.model.dtype)},
        encoder=_encoder_name(job.model),
        data=job.splits.source,
        pairs=job.splits.is_pairs,
        metric=result.metric,
        exit_layers=list(result.exit_layers),
        scores=scores,
        texts={name: len(getattr(job.splits, name)) for name in SPLITS},
        truncated=result.truncated,
        notes=list(result.notes),
        seconds=round(result.seconds, 1),
        train_digest=digest.to_dict(),
    )


def _encoder_name(model: EarlyExitModel) -> str | None:
    """Return the name of the pretrained encoder on the hub, or of its folder without the path."""
    name = model.config.encoder.name_or_path
    return (Path(name).name if Path(name).exists() else name) or None


def _write_folder(job: Job, summary: TrainingSummary, out: Path) -> None:
    """Write the model folder inside the work folder and move it to its place."""
    finished = job.work / "finished"
    job.model.save_pretrained(finished)
    job.tokenizer.save_pretrained(finished)
    shutil.copy(job.work / JOURNAL, finished / JOURNAL)
    write_json(finished / TRAINING, summary)
    write_text(finished / CARD, model_card(finished, out.name))
    publish(job.work, finished.name, out)
