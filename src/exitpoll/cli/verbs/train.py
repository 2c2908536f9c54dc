"""exitpoll train: train a model folder from texts, labelled or, below a classifier, not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypedDict

from exitpoll.cli.console import (
    notes_shown,
    print_as_json,
    progress_console,
    quieten_transformers,
    show_result,
    show_training,
)
from exitpoll.cli.groups import IN_DATA, IN_MODEL
from exitpoll.cli.options import (
    AsJson,
    Data,
    Names,
    Numbers,
    Out,
    Overwrite,
    Reading,
    ReadingFlags,
    Resume,
    TrainingFlags,
    plain_settings,
)
from exitpoll.errors import InputError
from exitpoll.training.methods import NEED_LAST_HEAD
from exitpoll.training.settings import TrainingSettings

if TYPE_CHECKING:
    from exitpoll.data.splits import Splits
    from exitpoll.models.model import EarlyExitModel


SUMMARY = ("encoder", "data", "metric", "exit_layers", "scores", "texts", "truncated", "notes", "seconds")  # as JSON


class Shape(TypedDict):
    """The exits and heads of a new model, as `from_encoder` and `from_classifier` take them."""

    exits: list[int] | None
    head: str
    shared_head: bool
    pooling: str
    exit_zero: str | None


class Start(NamedTuple):
    """The model to start from: one of the three."""

    encoder: str | None
    classifier: str | None
    model: str | None

    @property
    def name(self) -> str:
        """Its name or folder."""
        return str(next(name for name in self if name is not None))


class Known(NamedTuple):
    """What is known of the classes before the data are read; None where the data tell."""

    names: list[str] | None
    problem_type: str | None


def train(
    *,
    data: Data,
    out: Out,
    encoder: Annotated[str | None, IN_MODEL] = None,
    classifier: Annotated[str | None, IN_MODEL] = None,
    model: Annotated[str | None, IN_MODEL] = None,
    labels: Annotated[Names, IN_MODEL] = None,
    exits: Annotated[Numbers, IN_MODEL] = None,
    head: Annotated[Literal["mlp", "linear"], IN_MODEL] = "mlp",
    shared_head: Annotated[bool, IN_MODEL] = False,
    pooling: Annotated[Literal["mean", "first", "pooler", "attention"], IN_MODEL] = "mean",
    exit_zero: Annotated[Literal["embeddings", "ngrams"] | None, IN_MODEL] = None,
    reading: ReadingFlags = None,
    problem_type: Annotated[
        Literal["single_label_classification", "multi_label_classification", "regression"] | None, IN_DATA
    ] = None,
    limit: Annotated[int | None, IN_DATA] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    settings: TrainingFlags = None,
    as_json: AsJson = False,
) -> None:
    """Train an encoder with a head after every layer.

    Example: exitpoll train --encoder bert-base-uncased --data trec --out trec-bert

    Args:
        data: The data.
        out: The model folder to write.
        encoder: A hub name or folder of a pretrained encoder.
        classifier: Instead of an encoder: a fine-tuned classifier that keeps its own head as the last exit; only
            heads below it are trained, unless a schedule is named. The texts need no labels.
        model: Instead of an encoder: a folder that this command wrote, to which --exit-zero adds an exit; only its head
            is trained. The texts need no labels.
        labels: The names of the classes in the order of their numbers, for a classifier that does not name them; by
            default the labels of the data in alphabetical order, if that order fits the classifier's answers.
        exits: The layers after which a text may leave; all by default. One number is a static model of that depth. 0
            is an exit before the first layer.
        head: Kind of head: one hidden layer, or linear.
        shared_head: Use one head for all exits.
        pooling: What a head reads: the mean of the tokens, the first token, the encoder's own pooler, or a mean that is
            weighted by attention with a learned query.
        exit_zero: Add an exit before the first layer, whose head reads embeddings, or n-grams of tokens in addition.
        reading: Which columns to read.
        problem_type: The kind of labels, if it cannot be inferred from them.
        limit: Train on at most this many texts.
        resume: Resume an interrupted training.
        overwrite: Replace an older model folder, or discard an interrupted training.
        settings: How to train.
        as_json: Print the result as JSON.
    """
    import torch

    from exitpoll.data.bars import progress_bars
    from exitpoll.data.splits import load_splits
    from exitpoll.models.folder import read_training
    from exitpoll.models.pretrained import encoder_folder
    from exitpoll.models.tokenizer import load_tokenizer
    from exitpoll.training import ranks
    from exitpoll.training.train import preflight
    from exitpoll.training.train import train as train_model

    print_as_json(as_json)
    torch.set_flush_denormal(True)  # before torch starts its threads, which inherit it
    quieten_transformers()
    settings = plain_settings(settings)
    shape = Shape(exits=exits, head=head, shared_head=shared_head, pooling=pooling, exit_zero=exit_zero)
    start = Start(encoder, classifier, model)
    _check_start(start, settings)
    if model is not None:
        settings = _only_exit_zero(shape, labels, settings)
    preflight(settings, out, native_head=classifier is not None, overwrite=overwrite)
    known = _known_of(start, labels, problem_type)
    splits = load_splits(
        data,
        **vars(reading or Reading()),
        problem_type=known.problem_type,
        label_names=known.names,
        labels="optional" if encoder is None else "required",
        limit=limit,
        seed=settings.seed,
    )
    built = _build(start, splits, known, shape, settings.seed)
    tokenizer = load_tokenizer(str(start.name if encoder is None else encoder_folder(encoder)))
    with notes_shown(), progress_bars(progress_console()) as on_progress:
        trained = train_model(
            built, tokenizer, splits, out, settings, resume=resume, overwrite=overwrite, on_progress=on_progress
        )
    show_training(trained)
    summary = read_training(trained.folder)
    show_result({"out": str(trained.folder), **{name: summary.get(name) for name in SUMMARY}})
    ranks.leave()


def _check_start(start: Start, settings: TrainingSettings) -> None:
    """Check that there is one model to start from, and that it has what the schedule leaves unchanged."""
    if sum(name is not None for name in start) != 1:
        raise InputError("name the model to start from by one of --encoder, --classifier and --model")
    if start.encoder is not None and settings.schedule in NEED_LAST_HEAD:
        raise InputError(
            f"schedule {settings.schedule} starts from a trained last head, and an encoder has none yet: "
            "use --classifier or --model"
        )


def _only_exit_zero(shape: Shape, labels: list[str] | None, settings: TrainingSettings) -> TrainingSettings:
    """Refuse what cannot be changed of a trained model, and train its new head alone."""
    if shape["exit_zero"] is None:
        raise InputError("--model adds an exit before the first layer to a trained model: use --exit-zero")
    unchanged = Shape(exits=None, head="mlp", shared_head=False, pooling="mean", exit_zero=shape["exit_zero"])
    if shape != unchanged or labels is not None:
        raise InputError("--model keeps exits, heads and labels as they were trained: of its shape only exit 0 is new")
    if settings.schedule not in (None, "exit-zero"):
        raise InputError(f"--model trains the head at exit 0 alone, and schedule {settings.schedule} trains others too")
    return replace(settings, schedule="exit-zero")


def _known_of(start: Start, names: list[str] | None, problem_type: str | None) -> Known:
    """Return what a classifier or a trained model states about its classes, unless the command line names it."""
    from exitpoll.decide.metrics import REGRESSION
    from exitpoll.models.config import are_unnamed
    from exitpoll.models.pretrained import read_any_config, read_config

    if start.encoder is not None:
        return Known(names, problem_type)
    config = read_config(start.name) if start.model is None else read_any_config(start.name)
    if problem_type is None:
        problem_type = REGRESSION if config.num_labels == 1 else config.problem_type
    if names is None and problem_type != REGRESSION and not are_unnamed(config.id2label):
        names = [str(name) for name in config.id2label.values()]
    return Known(names, problem_type)


def _build(start: Start, splits: Splits, known: Known, shape: Shape, seed: int) -> EarlyExitModel:
    """Add heads to an encoder, below the head of a classifier, or before the first layer of a trained model."""
    from transformers import set_seed

    from exitpoll.models.model import EarlyExitModel

    set_seed(seed)  # for the initial weights of the heads; train() seeds the training itself
    if start.encoder is not None:
        names = list(splits.label_names)
        return EarlyExitModel.from_encoder(start.encoder, labels=names, problem_type=splits.problem_type, **shape)
    if start.classifier is not None:
        return EarlyExitModel.from_classifier(start.classifier, labels=known.names, **shape)
    assert shape["exit_zero"] is not None
    return EarlyExitModel.from_pretrained(start.name).with_exit_zero(shape["exit_zero"])
