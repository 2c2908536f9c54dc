"""exitpoll train: train a model folder from texts, labelled or, below a classifier, not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypedDict

from rich.console import Console

from exitpoll.cli.console import modes, notes_shown, print_as_json, quieten_transformers, show_result, show_training
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
)
from exitpoll.errors import InputError
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
    labels: Annotated[Names, IN_MODEL] = None,
    exits: Annotated[Numbers, IN_MODEL] = None,
    head: Annotated[Literal["mlp", "linear"], IN_MODEL] = "mlp",
    shared_head: Annotated[bool, IN_MODEL] = False,
    pooling: Annotated[Literal["mean", "first", "pooler"], IN_MODEL] = "mean",
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
        labels: The names of the classes in the order of their numbers, for a classifier that does not name them; by
            default the labels of the data in alphabetical order, if that order fits the classifier's answers.
        exits: The layers after which a text may leave; all by default. One number is a static model of that depth.
        head: Kind of head: one hidden layer, or linear.
        shared_head: Use one head for all exits.
        pooling: What a head reads: the mean of the tokens, the first token, or the encoder's own pooler.
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
    from exitpoll.training.train import preflight
    from exitpoll.training.train import train as train_model
    from exitpoll.training.trainer import processes

    print_as_json(as_json)
    torch.set_flush_denormal(True)  # before torch starts its threads, which inherit it
    quieten_transformers()
    settings = settings or TrainingSettings()
    _check_start(encoder, classifier, settings)
    preflight(settings, out, native_head=classifier is not None, overwrite=overwrite)
    known = Known(labels, problem_type) if classifier is None else _known_of(classifier, labels, problem_type)
    splits = load_splits(
        data,
        **vars(reading or Reading()),
        problem_type=known.problem_type,
        label_names=known.names,
        labels="required" if classifier is None else "optional",
        limit=limit,
        seed=settings.seed,
    )
    shape = Shape(exits=exits, head=head, shared_head=shared_head, pooling=pooling)
    model = _build(encoder, classifier, splits, known, shape, settings.seed)
    tokenizer = load_tokenizer(str(classifier if encoder is None else encoder_folder(encoder)))
    quiet = not processes().is_main_process
    with notes_shown(), progress_bars(Console(stderr=True, quiet=quiet or modes.quiet)) as on_progress:
        trained = train_model(
            model, tokenizer, splits, out, settings, resume=resume, overwrite=overwrite, on_progress=on_progress
        )
    if not quiet:
        show_training(trained)
        summary = read_training(trained.folder)
        show_result({"out": str(trained.folder), **{name: summary.get(name) for name in SUMMARY}})


def _check_start(encoder: str | None, classifier: str | None, settings: TrainingSettings) -> None:
    """Check that there is one model to start from, and that it has what the schedule leaves unchanged."""
    if (encoder is None) == (classifier is None):
        raise InputError("name the model to start from by either --encoder or --classifier")
    if encoder is not None and settings.schedule == "heads":
        raise InputError("schedule heads leaves the last head unchanged, and an encoder has none yet: use --classifier")


def _known_of(classifier: str, names: list[str] | None, problem_type: str | None) -> Known:
    """Return what a classifier states about its classes, unless the command line names it."""
    from exitpoll.decide.metrics import REGRESSION
    from exitpoll.models.config import are_unnamed
    from exitpoll.models.pretrained import read_config

    config = read_config(classifier)
    if problem_type is None:
        problem_type = REGRESSION if config.num_labels == 1 else config.problem_type
    if names is None and problem_type != REGRESSION and not are_unnamed(config.id2label):
        names = [str(name) for name in config.id2label.values()]
    return Known(names, problem_type)


def _build(
    encoder: str | None, classifier: str | None, splits: Splits, known: Known, shape: Shape, seed: int
) -> EarlyExitModel:
    """Add heads to an encoder, or below the head of a classifier."""
    from transformers import set_seed

    from exitpoll.models.model import EarlyExitModel

    set_seed(seed)  # for the initial weights of the heads; train() seeds the training itself
    if encoder is not None:
        names = list(splits.label_names)
        return EarlyExitModel.from_encoder(encoder, labels=names, problem_type=splits.problem_type, **shape)
    assert classifier is not None
    return EarlyExitModel.from_classifier(classifier, labels=known.names, **shape)
