"""The command line: one function per verb."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.table import Table

from exitpoll import __version__
from exitpoll.errors import InputError
from exitpoll.methods import TrainingSettings

if TYPE_CHECKING:
    from exitpoll.data import Splits
    from exitpoll.model import EarlyExitModel
    from exitpoll.training import Trained

_console = Console()
_errors = Console(stderr=True)

app = App(
    name="exitpoll",
    help="Text classifiers that stop reading as soon as they are sure.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)


@app.command
def train(
    *,
    data: str,
    out: Path,
    encoder: str | None = None,
    classifier: str | None = None,
    exits: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    head: Literal["mlp", "linear"] = "mlp",
    shared_head: bool = False,
    pooling: Literal["mean", "first", "pooler"] = "mean",
    task: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = None,
    limit: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    settings: Annotated[TrainingSettings | None, Parameter(name="*")] = None,
) -> None:
    """Train an encoder with a head after every layer.

    Example: exitpoll train --encoder bert-base-uncased --data trec --out trec-bert

    Args:
        data: A CSV, TSV, JSONL or Parquet file, a folder with train, dev and test files, a known task's name
            (ag_news, cola, mnli, mrpc, qnli, qqp, rte, sst2, sst5, trec) or a hub dataset's.
        out: The model folder to write.
        encoder: A hub name or folder of a pretrained encoder.
        classifier: Instead of an encoder: a fine-tuned classifier that keeps its own head as the last exit; only
            heads below it are trained, unless a schedule is named.
        exits: The layers after which a text may leave; all by default. One number is a static model of that depth.
        head: Kind of head: one hidden layer, or linear.
        shared_head: Let one head serve all exits.
        pooling: What a head reads: the mean of the tokens, the first token, or the encoder's own pooler.
        task: The known task whose metric to use, where the name of the data does not say it.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
        problem_type: The kind of labels, where it cannot be told from them.
        limit: Train on at most this many texts.
        resume: Go on with a training that was cut off.
        overwrite: Replace an older model folder, or drop a training that was cut off.
        settings: How to train.
    """
    import torch
    from transformers import set_seed

    from exitpoll.data import load_splits
    from exitpoll.folders import check_free
    from exitpoll.progress import training_bars
    from exitpoll.tokens import load_tokenizer
    from exitpoll.trainer import processes
    from exitpoll.training import train as train_model

    torch.set_flush_denormal(True)  # holds for threads that start later
    _quieten_transformers()
    settings = _settings_for(settings or TrainingSettings(), encoder, classifier)
    check_free(out, overwrite=overwrite)
    splits = load_splits(
        data,
        task=task,
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
        problem_type=problem_type,
        label_names=None if classifier is None else _labels_of(classifier),
        limit=limit,
        seed=settings.seed,
    )
    set_seed(settings.seed)
    shape = {"exits": exits, "head": head, "shared_head": shared_head, "pooling": pooling}
    model = _build(encoder, classifier, splits, shape)
    tokenizer = load_tokenizer(str(encoder or classifier))
    quiet = not processes().is_main_process
    with training_bars(Console(stderr=True, quiet=quiet)) as on_progress:
        trained = train_model(
            model, tokenizer, splits, out, settings, resume=resume, overwrite=overwrite, on_progress=on_progress
        )
    if not quiet:
        _show(trained)


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
    from exitpoll.model import read_config

    config = read_config(classifier)
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    return None if names == [f"LABEL_{number}" for number in range(len(names))] else names


def _build(encoder: str | None, classifier: str | None, splits: Splits, shape: dict[str, Any]) -> EarlyExitModel:
    """Put heads on an encoder, or below a classifier's own."""
    from exitpoll.model import EarlyExitModel

    if encoder is not None:
        names = list(splits.label_names)
        return EarlyExitModel.from_encoder(encoder, labels=names, problem_type=splits.problem_type, **shape)
    assert classifier is not None
    return EarlyExitModel.from_classifier(classifier, **shape)


def _show(trained: Trained) -> None:
    """Print the table of a training, exit by exit."""
    table = Table(title=f"{trained.metric} by exit, in %", title_justify="left")
    for name in ("exit", "layer", "calibration", "test"):
        table.add_column(name, justify="right")
    rows = zip(trained.layers, trained.calibration_scores, trained.test_scores, strict=True)
    for number, (layer, calibration, test) in enumerate(rows, start=1):
        table.add_row(str(number), str(layer), f"{100 * calibration:.1f}", f"{100 * test:.1f}")
    _console.print(table)
    for note in trained.notes:
        _console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if trained.truncated:
        length = trained.model.config.max_length
        _console.print(
            f"note: {trained.truncated} of {trained.texts} texts were longer than {length} tokens and truncated"
        )
    _console.print(
        f"wrote {trained.folder} after {trained.seconds:.0f} s", highlight=False, markup=False, soft_wrap=True
    )


def main() -> None:
    """Run the command line; whatever goes wrong is one line on stderr and exit code 2."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    try:
        app(exit_on_error=False, print_error=False, result_action="return_value")
    except KeyboardInterrupt:
        _fail("stopped; a training goes on with the same command and --resume", 130)
    except (InputError, CycloptsError, OSError) as error:
        _fail(str(error), 2)
    except Exception as error:
        if "EXITPOLL_TRACEBACK" in os.environ:
            raise
        _fail(f"unexpected {type(error).__name__}: {error} (EXITPOLL_TRACEBACK=1 shows where)", 2)


def _fail(message: str, code: int) -> NoReturn:
    """Say what went wrong in one line, and stop."""
    line = shorten(message, 600)
    _errors.print(f"exitpoll: {line}", style="red", highlight=False, markup=False, soft_wrap=True)
    sys.exit(code)


def _quieten_transformers() -> None:
    """Keep load reports and bars of transformers out of our output; errors still show."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
