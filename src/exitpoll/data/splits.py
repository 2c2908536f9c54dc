"""Load texts from files, folders or the hub, in three splits: train, calibration, test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.data.columns import LABEL_COLUMNS, Columns, Table, pick_columns, to_table
from exitpoll.data.demo import EMBEDDED, read_embedded
from exitpoll.data.hub import read_hub
from exitpoll.data.labels import LabelScheme
from exitpoll.data.readers import READERS, RawSplits, read_file, read_folder
from exitpoll.data.tasks import TASKS, Task, task_named
from exitpoll.decide.metrics import DEFAULT_METRICS, METRICS, MULTI_LABEL, SINGLE_LABEL
from exitpoll.errors import InputError

AGREEMENT = "agreement"  # the metric of texts without labels: how often an exit answers as the last one does
CUT_SHARE, CUT_MOST = 0.1, 2000  # a missing split takes this share of the train split, and at most so many texts


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
    test split, so that results stay comparable with published ones; what is still missing is cut from the train split.

    Args:
        source: A CSV, TSV, JSONL or Parquet file, a folder of them, the name of a known task or of a dataset on the
            hub; or `embedded`, the movie reviews of the extra demo.
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
    columns = pick_columns(raw.rows["train"], Columns(text_column, pair_column, label_column, group_column))
    tables = {split: to_table(rows, columns) for split, rows in raw.rows.items()}
    metric_notes: tuple[str, ...] = ()
    raw_labels = tables["train"].labels
    if raw_labels is None:
        if labels == "required":
            usual = " or ".join(LABEL_COLUMNS)
            raise InputError(f"'{source}': no labels found; name their column with --label-column (by default {usual})")
        tables = {split: replace(table, labels=None) for split, table in tables.items()}
        scheme, metric = LabelScheme(problem_type or SINGLE_LABEL, label_names or raw.class_names or ()), AGREEMENT
    else:
        scheme = LabelScheme.of(raw_labels, problem_type, label_names or raw.class_names)
        metric, metric_notes = _metric_for(known_task, scheme)
    splits = _complete(tables, scheme, metric, seed)
    splits = replace(splits, notes=(*raw.notes, *splits.notes, *metric_notes), source=Path(source).name)
    if limit is not None:
        splits = _limited(splits, limit, seed)
    return _checked(splits)


def load_texts(
    source: str | Path, *, label_names: Sequence[str], problem_type: str, columns: Columns | None = None
) -> Texts:
    """Load one file as it is, without splits; its labels, if it has any, are those of a model.

    Args:
        source: A CSV, TSV, JSONL or Parquet file.
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
    table = to_table(rows, pick_columns(rows, columns or Columns()))
    return _to_texts(table, LabelScheme(problem_type, label_names, accept_numbers=True))


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
        return RawSplits({"train": read_file(path)})
    if path.is_dir():
        return read_folder(path)
    if path.exists():
        raise InputError(f"'{source}' is neither a file nor a folder")
    if path.suffix.lower() in READERS or str(source).startswith((".", "/", "~")):
        raise InputError(f"'{source}' does not exist")
    return read_hub(str(source), task_named(str(source)))


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
    """Split some texts off at random, stratified by class where the classes are large enough."""
    from sklearn.model_selection import train_test_split

    size = min(max(round(len(texts) * CUT_SHARE), 1), CUT_MOST)
    if len(texts) < 2:
        raise InputError(f"{len(texts)} text is too few to cut a split from; provide dev and test files too")
    stratify = texts.labels if _can_stratify(texts, problem_type, size) else None
    kept, cut = train_test_split(np.arange(len(texts)), test_size=size, random_state=seed, stratify=stratify)
    return texts.select(np.sort(kept)), texts.select(np.sort(cut))


def _can_stratify(texts: Texts, problem_type: str, size: int) -> bool:
    """Return whether every class is large enough to be in both parts of a cut."""
    if problem_type != SINGLE_LABEL or texts.labels is None:
        return False
    counts = np.bincount(texts.labels)
    counts = counts[counts > 0]
    return bool(counts.min() >= 2 and len(counts) <= min(size, len(texts) - size))


def _limited(splits: Splits, limit: int, seed: int) -> Splits:
    """Draw some of the training texts at random."""
    if limit < 1:
        raise InputError(f"limit {limit} must be at least 1")
    if limit >= len(splits.train):
        return splits
    rows = np.sort(np.random.default_rng(seed).choice(len(splits.train), size=limit, replace=False))
    note = f"{limit} of {len(splits.train)} training texts were drawn with seed {seed}"
    return replace(splits, train=splits.train.select(rows), notes=(*splits.notes, note))
