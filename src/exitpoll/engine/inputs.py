"""Read texts for a model: the same splits and class numbers as in its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from exitpoll.data.columns import Columns
from exitpoll.data.readers import notes_on
from exitpoll.data.splits import Splits, Texts, load_splits, load_texts
from exitpoll.data.tasks import task_named
from exitpoll.decide.metrics import DEFAULT_METRICS, METRICS, REGRESSION
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError

Split = Literal["train", "calibration", "test", "all"]


@dataclass(frozen=True)
class InputTexts:
    """Texts for a model, with the metadata that their trace will carry."""

    texts: Texts
    about: Mapping[str, Any]  # data, split, task, metric, overlap with the training texts
    notes: tuple[str, ...] = ()  # what a reader of the numbers should know about the splits


def read_texts(
    loaded: LoadedModel,
    data: str,
    split: Split,
    *,
    task: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
) -> InputTexts:
    """Read a split as in training, with the class numbers of the model.

    Args:
        loaded: The model.
        data: A file, a folder, or the name of a known task or of a dataset on the hub.
        split: The split; "all" reads a whole file, with labels or without.
        task: The known task whose metric to use, if neither the training of the model nor the name of the data states
            it.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
        group_column: The column of the group, if texts belong to groups.

    Returns:
        The texts.
    """
    columns = Columns(text_column, pair_column, label_column, group_column)
    problem_type = loaded.runtime.problem_type
    if split == "all":
        names = list(loaded.label_names)
        texts = load_texts(data, label_names=names, problem_type=problem_type, columns=columns)
        metric, notes = DEFAULT_METRICS[problem_type], list(notes_on(Path(data)))
    else:
        splits = _load_splits(loaded, data, task, columns)
        texts, metric, notes = getattr(splits, split), splits.metric, list(splits.notes)
    loaded.check_pairs(f"'{data}'", pairs=texts.second is not None)
    named = task or Path(data).name
    about: dict[str, Any] = {
        "data": Path(data).name,
        "split": split,
        "task": named if task_named(named) else None,
        "metric": _known_metric(loaded.training.get("metric"), metric, problem_type),
    }
    if texts.labels is None:
        notes.append(f"the {len(texts)} texts have no labels: scores are agreement with the full model")
    overlap = loaded.overlap(texts)
    if overlap is not None:
        about["overlap"] = overlap.to_dict()
        # Of the splits that the model was trained on, load_splits has counted the texts that they share.
        is_counted = split in ("calibration", "test") and loaded.training.get("data") == Path(data).name
        if overlap.shared and not is_counted:
            notes.append(f"{overlap.shared} of {overlap.checked} texts are training texts of this model")
    return InputTexts(texts, about, tuple(notes))


def _load_splits(loaded: LoadedModel, data: str, task: str | None, columns: Columns) -> Splits:
    """Load the splits as training cut them, with labels or without."""
    problem_type = loaded.runtime.problem_type
    seed = loaded.training.get("settings", {}).get("seed")
    splits = load_splits(
        data,
        task=task,
        label_names=None if problem_type == REGRESSION else list(loaded.label_names),
        problem_type=problem_type,
        labels="optional",
        seed=seed if isinstance(seed, int) and seed >= 0 else 0,
        text_column=columns.text,
        pair_column=columns.pair,
        label_column=columns.label,
        group_column=columns.group,
    )
    if splits.cut and not isinstance(seed, int):
        raise InputError(
            f"'{data}' has no {' or '.join(sorted(splits.cut))} split, and the seed with which training cut it from "
            "the train split is not known; use a file and --split all"
        )
    return splits


def _known_metric(stated: object, usual: str, problem_type: str) -> str:
    """Return the metric of the training or else of the data; agreement is what traces without labels take anyway."""
    candidates = (metric for metric in (stated, usual) if metric in METRICS)
    return str(next(candidates, DEFAULT_METRICS[problem_type]))
