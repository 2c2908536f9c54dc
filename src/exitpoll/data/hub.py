"""Read datasets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from exitpoll.data.rows import RawSplits, Row
from exitpoll.data.tasks import Task
from exitpoll.errors import InputError, MissingExtraError


class _Dataset(Protocol):
    """One split of a dataset, as the package `datasets` loads it."""

    features: Mapping[str, object]  # of every column; those of class labels have `names`

    def __iter__(self) -> Iterator[Mapping[str, object]]:
        """Iterate over the rows."""


def read_hub(name: str, task: Task | None) -> RawSplits:
    """Read a dataset of the hub.

    Args:
        name: The name of the dataset on the hub, or of a known task.
        task: That task, if the name is one.

    Returns:
        The rows of the splits train, dev and test, as far as the dataset has them.
    """
    dataset = task.hub if task is not None else name
    loaded = _load_dataset(name, dataset, None if task is None else task.subset)
    splits = task.splits if task is not None else _usual_splits(loaded)
    renamed = {} if task is None else _renamed_columns(task)
    rows: dict[str, list[Row]] = {}
    notes: list[str] = []
    for split, hub_split in splits.items():
        if hub_split not in loaded and split != "train":
            continue
        place = f"{dataset} {hub_split}"
        rows[split], dropped = _drop_unlabelled(list(_rows(loaded[hub_split], place, renamed)))
        if dropped:
            notes.append(f"{dropped} texts of {place} have no label and were left out")
    return RawSplits(rows, _class_names(loaded[splits["train"]], renamed), tuple(notes))


def _load_dataset(name: str, dataset: str, subset: str | None) -> Mapping[str, _Dataset]:
    """Download a dataset, or load it from the cache."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"'{name}' is not a local file or folder, and reading from the hub", "data") from error
    try:
        return datasets.load_dataset(dataset, subset)
    except Exception as error:  # the client of the hub raises many kinds, from no network to no such dataset
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"'{name}' is not a local file or folder, and the hub did not provide it: {reason}") from error


def _usual_splits(present: Iterable[str]) -> dict[str, str]:
    """Map our names of the splits to the usual names on the hub."""
    names = sorted(present)
    if "train" not in names:
        raise InputError(f"the dataset has no train split; its splits are: {', '.join(names)}")
    usual = {"train": "train", "dev": "validation", "test": "test"}
    return {split: hub_split for split, hub_split in usual.items() if hub_split in names}


def _renamed_columns(task: Task) -> dict[str, str]:
    """Map the columns of a known task to our conventional names; another column called `label` is moved away."""
    texts = ("text",) if len(task.columns) == 1 else ("text_a", "text_b")
    return {"label": "label at the hub"} | dict(zip(task.columns, texts, strict=True)) | {task.label: "label"}


def _rows(dataset: _Dataset, place: str, renamed: Mapping[str, str]) -> Iterator[Row]:
    """Iterate over a split, with class numbers replaced by class names."""
    names = {column: feature.names for column, feature in dataset.features.items() if hasattr(feature, "names")}
    for number, values in enumerate(dataset, start=1):
        row = {
            renamed.get(column, column): _class_name(value, names[column]) if column in names else value
            for column, value in values.items()
        }
        yield Row(row, f"{place} row {number}")


def _class_name(number: object, names: list[str]) -> str | None:
    """Return the name of a class; None for −1, which marks a missing label."""
    return names[number] if isinstance(number, int) and number >= 0 else None


def _drop_unlabelled(rows: list[Row]) -> tuple[list[Row], int]:
    """Drop the rows without a label, unless no row has one; also return how many were dropped."""
    labelled = [row for row in rows if row.values.get("label") is not None]
    return (labelled, len(rows) - len(labelled)) if labelled else (rows, 0)


def _class_names(dataset: _Dataset, renamed: Mapping[str, str]) -> list[str] | None:
    """Return the classes in the order of the hub, if it defines one."""
    for column, feature in dataset.features.items():
        if renamed.get(column, column) == "label" and hasattr(feature, "names"):
            return list(feature.names)
    return None
