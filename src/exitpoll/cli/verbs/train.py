"""exitpoll train: from data to a model folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from exitpoll.cli.console import quieten_transformers, show_training
from exitpoll.cli.options import Data, Numbers, Reading
from exitpoll.errors import InputError
from exitpoll.training.settings import TrainingSettings

if TYPE_CHECKING:
    from exitpoll.data.splits import Splits
    from exitpoll.models.model import EarlyExitModel


def train(
    *,
    data: Data,
    out: Path,
    encoder: str | None = None,
    classifier: str | None = None,
    exits: Numbers = None,
    head: Literal["mlp", "linear"] = "mlp",
    shared_head: bool = False,
    pooling: Literal["mean", "first", "pooler"] = "mean",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = None,
    limit: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    settings: Annotated[TrainingSettings | None, Parameter(name="*")] = None,
) -> None:
    """Train an encoder with a head after every layer.

    Example: exitpoll train --encoder bert-base-uncased --data trec --out trec-bert

    Args:
        data: The data.
        out: The model folder to write.
        encoder: A hub name or folder of a pretrained encoder.
        classifier: Instead of an encoder: a fine-tuned classifier that keeps its own head as the last exit; only
            heads below it are trained, unless a schedule is named.
        exits: The layers after which a text may leave; all by default. One number is a static model of that depth.
        head: Kind of head: one hidden layer, or linear.
        shared_head: Let one head serve all exits.
        pooling: What a head reads: the mean of the tokens, the first token, or the encoder's own pooler.
        reading: Which columns to read.
        problem_type: The kind of labels, where it cannot be told from them.
        limit: Train on at most this many texts.
        resume: Go on with a training that was cut off.
        overwrite: Replace an older model folder, or drop a training that was cut off.
        settings: How to train.
    """
    import torch
    from transformers import set_seed

    from exitpoll.cli.progress import progress_bars
    from exitpoll.data.demo import encoder_folder
    from exitpoll.data.splits import load_splits
    from exitpoll.models.folder import check_free_for_model
    from exitpoll.models.tokenizer import load_tokenizer
    from exitpoll.training.train import train as train_model
    from exitpoll.training.trainer import processes

    torch.set_flush_denormal(True)  # holds for threads that start later
    quieten_transformers()
    settings = _settings_for(settings or TrainingSettings(), encoder, classifier)
    check_free_for_model(out, overwrite=overwrite)
    splits = load_splits(
        data,
        **vars(reading or Reading()),
        problem_type=problem_type,
        label_names=None if classifier is None else _labels_of(classifier),
        limit=limit,
        seed=settings.seed,
    )
    set_seed(settings.seed)
    shape = {"exits": exits, "head": head, "shared_head": shared_head, "pooling": pooling}
    model = _build(encoder, classifier, splits, shape)
    tokenizer = load_tokenizer(str(classifier if encoder is None else encoder_folder(encoder)))
    quiet = not processes().is_main_process
    with progress_bars(Console(stderr=True, quiet=quiet)) as on_progress:
        trained = train_model(
            model, tokenizer, splits, out, settings, resume=resume, overwrite=overwrite, on_progress=on_progress
        )
    if not quiet:
        show_training(trained)


def _settings_for(settings: TrainingSettings, encoder: str | None, classifier: str | None) -> TrainingSettings:
    """Make sure of one thing to start from; a fine-tuned classifier is left as it is unless a schedule is named."""
    if (encoder is None) == (classifier is None):
        raise InputError("say what to start from: either --encoder or --classifier")
    if encoder is not None and settings.schedule == "heads":
        raise InputError("schedule heads leaves the last head as it is, and an encoder has none yet: use --classifier")
    if classifier is not None and settings.schedule is None:
        settings = replace(settings, schedule="heads")
    return settings.resolved()


def _labels_of(classifier: str) -> list[str] | None:
    """Read a classifier's label names, None if it has only numbers for them."""
    from exitpoll.models.pretrained import read_config

    config = read_config(classifier)
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    return None if names == [f"LABEL_{number}" for number in range(len(names))] else names


def _build(encoder: str | None, classifier: str | None, splits: Splits, shape: dict[str, Any]) -> EarlyExitModel:
    """Put heads on an encoder, or below a classifier's own."""
    from exitpoll.models.model import EarlyExitModel

    if encoder is not None:
        names = list(splits.label_names)
        return EarlyExitModel.from_encoder(encoder, labels=names, problem_type=splits.problem_type, **shape)
    assert classifier is not None
    return EarlyExitModel.from_classifier(classifier, **shape)
