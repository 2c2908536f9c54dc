"""Load texts from files, folders or the hub, in three splits: train, calibration, test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.data.columns import (
    Columns,
    PickedColumns,
    Table,
    column_notes,
    find_text_columns,
    is_empty,
    pick_columns,
    to_table,
)
from exitpoll.data.cut import copies_of, cut_rows
from exitpoll.data.demo import EMBEDDED, read_embedded
from exitpoll.data.hub import read_hub
from exitpoll.data.labels import LabelScheme, label_notes
from exitpoll.data.normalize import normalized
from exitpoll.data.readers import kind_of, notes_on, read_file, read_folder
from exitpoll.data.rows import RawSplits
from exitpoll.data.tasks import TASKS, Task, task_named
from exitpoll.decide.metrics import DEFAULT_METRICS, METRICS, MULTI_LABEL, SINGLE_LABEL
from exitpoll.errors import InputError

AGREEMENT = "agreement"  # the metric of texts without labels: how often an exit answers as the last one does


@dataclass(frozen=True)
class Texts:
    """Texts or pairs of texts, with their labels if they have any."""

    first: Sequence[str]  # (texts,)
    second: Sequence[str] | None = None  # (texts,), for pairs
    labels: NDArray | None = None  # (texts,) class numbers or values; (texts, classes) of 0 and 1 for multi-label
    groups: Sequence[str] | None = None  # (texts,), the content of the group column, if one was named

    @classmethod
    def of(cls, texts: Sequence[Text]) -> Texts:
        """Make unlabelled texts of strings, or of pairs of strings.

        Args:
            texts: Strings, or pairs of strings, but not both.

        Returns:
            The texts.
        """
        firsts = [text[0] if isinstance(text, tuple) else text for text in texts]
        seconds = [text[1] for text in texts if isinstance(text, tuple)]
        if seconds and len(seconds) < len(firsts):
            raise InputError("some texts are pairs and some are not")
        return cls(firsts, seconds or None)

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.first)

    def __iter__(self) -> Iterator[Text]:
        """Iterate over the texts: strings, or pairs of strings."""
        return iter(self.first) if self.second is None else zip(self.first, self.second, strict=True)

    def select(self, rows: NDArray) -> Texts:
        """Select texts by their row numbers.

        Args:
            rows: Row numbers, in the order wanted.

        Returns:
            The texts at these rows, with their labels and groups.
        """
        return Texts(
            first=[self.first[row] for row in rows],
            second=None if self.second is None else [self.second[row] for row in rows],
            labels=None if self.labels is None else self.labels[rows],
            groups=None if self.groups is None else [self.groups[row] for row in rows],
        )


@dataclass(frozen=True)
class Splits:
    """The three splits of a dataset, and what its labels mean."""

    train: Texts
    calibration: Texts
    test: Texts
    label_names: Sequence[str]
    problem_type: str
    metric: str
    notes: Sequence[str] = ()  # what a reader of the results should know about the splits
    unlabelled: Texts | None = None  # a test split whose labels are not published, as in GLUE
    source: str | None = None  # name of the dataset
    cut: frozenset[str] = frozenset()  # the splits that were cut from the train split

    @property
    def is_pairs(self) -> bool:
        """Whether every text is a pair."""
        return self.train.second is not None


def load_splits(
    source: str | Path,
    *,
    task: str | None = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    problem_type: str | None = None,
    label_names: Sequence[str] | None = None,
    labels: Literal["required", "optional"] = "required",
    limit: int | None = None,
    seed: int = 0,
) -> Splits:
    """Load a dataset in three splits.

    A folder or hub dataset may have train, dev and test splits. Without a labelled test split the dev split becomes the
    test split, so that results stay comparable with published ones; what is still missing is cut from the train split,
    with all copies of a text on one side. Texts that two splits share are counted in the notes.

    Args:
        source: A CSV, TSV, JSON, JSONL or Parquet file, the text files also compressed (.gz, .zst); a folder of them,
            the name of a known task or of a dataset on the hub; or `embedded`, the movie reviews of the extra demo.
        task: The task whose metric to use, where the name of the source is not that of a task.
        text_column: The column of the text; looked up by convention if not named.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
        group_column: A column of groups, to report results by group.
        problem_type: As in transformers; inferred from the labels by default.
        label_names: The classes in the order in which to number them; those of the train split, sorted, by default.
        labels: Whether a train split without labels is refused; if "optional", no split has labels then.
        limit: Draw at most this many training texts at random.
        seed: Seed of the cuts and of the draw.

    Returns:
        The splits, with labels as numbers.
    """
    known_task = _find_task(source, task)
    raw = _read_source(source)
    wanted = Columns(text_column, pair_column, label_column, group_column)
    columns = pick_columns(raw.rows["train"], wanted)
    class_names = raw.class_names if label_names is None else label_names
    tables = {split: to_table(rows, columns, class_names or ()) for split, rows in raw.rows.items()}
    if tables["train"].labels is None:
        if labels == "required":
            message = f"'{source}': no labels found: no column is called label; name theirs: label_column"
            raise InputError(message, options=["label_column"])
        tables = {split: replace(table, labels=None) for split, table in tables.items()}
    scheme, metric, metric_notes = _scheme_of(tables["train"], problem_type, class_names, known_task)
    splits = _complete(tables, scheme, metric, seed)
    given = [table.labels for table in tables.values() if table.labels is not None]
    notes = (*raw.notes, *column_notes(columns, wanted), *splits.notes, *label_notes(given, scheme), *metric_notes)
    splits = replace(splits, notes=notes, source=Path(source).name)
    if limit is not None:
        splits = _limited(splits, limit, seed)
    return _checked(replace(splits, notes=(*splits.notes, *_absent_notes(splits), *_overlap_notes(splits))))


def load_texts(
    source: str | Path, *, label_names: Sequence[str], problem_type: str, columns: Columns | None = None
) -> Texts:
    """Load one file as it is, without splits; its labels, if it has any, are those of a model.

    Args:
        source: A CSV, TSV, JSON, JSONL, TXT or Parquet file, the text files also compressed (.gz, .zst).
        label_names: The classes of the model, in the order of their numbers.
        problem_type: What the model predicts, as in transformers.
        columns: The columns to read; looked up by convention by default.

    Returns:
        The texts, with labels if the file has them.
    """
    path = Path(source)
    if not path.exists() and source != EMBEDDED:
        raise InputError(f"'{source}' does not exist")
    if not path.is_file():
        raise InputError(f"'{source}' is not a file; a folder or a dataset of the hub has splits to choose from")
    rows = read_file(path)
    table = to_table(rows, pick_columns(rows, columns or Columns()), label_names)
    return _to_texts(table, LabelScheme(problem_type, label_names, accept_numbers=True))


def read_unlabelled(source: str | Path, columns: Columns | None = None) -> tuple[Texts, list[str]]:
    """Read the texts of one file, and no labels; rows without a text, which logs have, are left out.

    Args:
        source: A CSV, TSV, JSON, JSONL, TXT or Parquet file, the text files also compressed (.gz, .zst).
        columns: The columns of the texts; looked up by convention by default.

    Returns:
        The texts, and notes on what was left out.
    """
    path = Path(source)
    if not path.is_file():
        raise InputError(f"'{source}' is not a file" if path.exists() else f"'{source}' does not exist")
    rows, wanted = read_file(path), columns or Columns()
    text, pair = find_text_columns(rows, wanted.text, wanted.pair)
    filled = [row for row in rows if not any(is_empty(row, column) for column in (text, pair) if column is not None)]
    if not filled:
        raise InputError(f"'{source}': no row has a text in column '{text}'" + (f" and '{pair}'" if pair else ""))
    left_out = len(rows) - len(filled)
    table = to_table(filled, PickedColumns(text, pair))
    notes = [f"{left_out} of {len(rows)} rows have no text and are left out"] if left_out else []
    return Texts(table.first, table.second), notes


def _to_texts(table: Table, scheme: LabelScheme) -> Texts:
    """Turn the labels of a table, if it has any, into numbers."""
    labels = None if table.labels is None else scheme.encode(table.labels)
    return Texts(table.first, table.second, labels, table.groups)


def _find_task(source: str | Path, task: str | None) -> Task | None:
    """Find the task by its name or by the name of the source."""
    if task is None:
        may_be_task = Path(source).exists() or "/" not in str(source)
        return task_named(Path(source).name) if may_be_task else None
    known_task = task_named(task)
    if known_task is None:
        raise InputError(f"task '{task}' is unknown; known tasks: {', '.join(sorted(TASKS))}")
    return known_task


def _read_source(source: str | Path) -> RawSplits:
    """Read every split that the source has."""
    if source == EMBEDDED:
        return read_embedded()
    path = Path(source)
    if path.is_file():
        return RawSplits({"train": read_file(path)}, notes=notes_on(path))
    if path.is_dir():
        return read_folder(path)
    if path.exists():
        raise InputError(f"'{source}' is neither a file nor a folder")
    if kind_of(path) is not None or str(source).startswith((".", "/", "~")):
        raise InputError(f"'{source}' does not exist")
    return read_hub(str(source), task_named(str(source)))


def _scheme_of(
    table: Table, problem_type: str | None, class_names: Sequence[str] | None, task: Task | None
) -> tuple[LabelScheme, str, tuple[str, ...]]:
    """Return how the labels of the train split are numbered, the metric, and notes on it."""
    if table.labels is None:
        return LabelScheme(problem_type or SINGLE_LABEL, class_names or ()), AGREEMENT, ()
    scheme = LabelScheme.of(table.labels, problem_type, class_names)
    return scheme, *_metric_for(task, scheme)


def _metric_for(task: Task | None, scheme: LabelScheme) -> tuple[str, tuple[str, ...]]:
    """Return the metric of a dataset, and a note if it is not the one of the task."""
    if task is None or scheme.problem_type != SINGLE_LABEL:
        return DEFAULT_METRICS[scheme.problem_type], ()
    if METRICS[task.metric].only_two_classes and len(scheme.names) != 2:
        metric = DEFAULT_METRICS[SINGLE_LABEL]
        return metric, (f"the metric is {metric}: {task.metric} is for two classes, not {len(scheme.names)}",)
    return task.metric, ()


def _complete(tables: Mapping[str, Table], scheme: LabelScheme, metric: str, seed: int) -> Splits:
    """Make three splits of those that have labels; what is missing is cut from the train split."""
    texts = {split: _to_texts(table, scheme) for split, table in tables.items()}
    labelled = {split: part for split, part in texts.items() if part.labels is not None} or texts
    train, dev, test = labelled["train"], labelled.get("dev"), labelled.get("test")
    notes: list[str] = []
    cut: dict[str, Texts] = {}
    if test is None and dev is not None:
        test, dev = dev, None
        notes.append("the dev split is the test split: there is no labelled test split")
    if test is None:
        train, test = _cut(train, scheme.problem_type, seed)
        cut["test"] = test
    if dev is None:
        train, dev = _cut(train, scheme.problem_type, seed)
        cut["calibration"] = dev
    for split, part in cut.items():
        notes.append(f"the {split} split of {len(part)} texts was cut from train with seed {seed}")
    if cut and (copies := _count_copies(labelled["train"])):
        count = len(labelled["train"])
        notes.append(f"{copies} of the {count} texts are copies of others: all copies of a text are in one split")
    return Splits(
        train=train,
        calibration=dev,
        test=test,
        label_names=scheme.names,
        problem_type=scheme.problem_type,
        metric=metric,
        notes=notes,
        unlabelled=texts["test"] if "test" in texts and "test" not in labelled else None,
        cut=frozenset(cut),
    )


def _checked(splits: Splits) -> Splits:
    """Refuse a train split with a single label, from which nothing can be learned."""
    labels = splits.train.labels
    if labels is not None and splits.problem_type != MULTI_LABEL and len(np.unique(labels)) < 2:
        raise InputError(f"the {len(splits.train)} texts left to train on all have one label; use more texts")
    return splits


def _cut(texts: Texts, problem_type: str, seed: int) -> tuple[Texts, Texts]:
    """Cut a split from the train split."""
    kept, cut = cut_rows(list(texts), texts.labels, problem_type, seed)
    return texts.select(kept), texts.select(cut)


def _count_copies(texts: Texts) -> int:
    """Count the texts that occurred before."""
    return len(texts) - len(np.unique(copies_of(list(texts))))


def _absent_notes(splits: Splits) -> list[str]:
    """Name the classes of which there is no training text."""
    labels = splits.train.labels
    if splits.problem_type != SINGLE_LABEL or labels is None:
        return []
    present = set(np.unique(labels).tolist())
    absent = ", ".join(name for number, name in enumerate(splits.label_names) if number not in present)
    return [f"no training text has the label: {shorten(absent, 200)}"] if absent else []


def _overlap_notes(splits: Splits) -> list[str]:
    """Count the texts that two splits share."""
    parts = {split: [normalized(text) for text in getattr(splits, split)] for split in ("train", "calibration", "test")}
    notes = []
    for split, other in (("calibration", "train"), ("test", "train"), ("test", "calibration")):
        known = set(parts[other])
        if shared := sum(text in known for text in parts[split]):
            notes.append(f"{shared} of the {len(parts[split])} {split} texts are in the {other} split too")
    return notes


def _limited(splits: Splits, limit: int, seed: int) -> Splits:
    """Draw some of the training texts at random."""
    if limit < 1:
        raise InputError(f"limit {limit} must be at least 1")
    if limit >= len(splits.train):
        return splits
    rows = np.sort(np.random.default_rng(seed).choice(len(splits.train), size=limit, replace=False))
    note = f"{limit} of {len(splits.train)} training texts were drawn with seed {seed}"
    return replace(splits, train=splits.train.select(rows), notes=(*splits.notes, note))
