"""Labelled texts from files, folders or the hub, in three splits: train, calibration, test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.data.columns import LABEL_COLUMNS, Columns, Table, pick_columns, to_table
from exitpoll.data.demo import EMBEDDED, read_embedded
from exitpoll.data.labels import class_names, label_numbers, problem_of
from exitpoll.data.readers import READERS, Row, Source, checked, read_hub
from exitpoll.data.tasks import TASKS, Task, task_named
from exitpoll.decide.metrics import DEFAULT_METRICS
from exitpoll.errors import InputError

SPLIT_STEMS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val", "calibration"), "test": ("test",)}
SHARD = re.compile(r"-\d+-of-\d+$")
CUT_SHARE, CUT_MOST = 0.1, 2000  # a missing split takes this share of train, and no more texts than that


@dataclass(frozen=True)
class Texts:
    """Some texts or pairs, with their labels if they have any."""

    first: Sequence[str]  # (texts,)
    second: Sequence[str] | None = None  # (texts,), for pairs
    labels: NDArray | None = None  # (texts,) class numbers or values; (texts, classes) of 0 and 1 for multi-label
    groups: Sequence[str] | None = None  # (texts,), if a column of groups was asked for

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
        """Pick some texts, in the order given.

        Args:
            rows: Their numbers.

        Returns:
            The texts and labels at these rows.
        """
        return Texts(
            first=[self.first[row] for row in rows],
            second=None if self.second is None else [self.second[row] for row in rows],
            labels=None if self.labels is None else self.labels[rows],
            groups=None if self.groups is None else [self.groups[row] for row in rows],
        )


@dataclass(frozen=True)
class Splits:
    """A task's three splits and what is known of its labels."""

    train: Texts
    calibration: Texts
    test: Texts
    label_names: Sequence[str]
    problem_type: str
    metric: str
    notes: Sequence[str] = field(default_factory=tuple)  # what a reader of the numbers should know of the splits
    unlabelled: Texts | None = None  # a test split whose labels are kept from us, as GLUE does
    source: str | None = None  # what the data are called
    cut: frozenset[str] = frozenset()  # the splits that were cut from train

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
    limit: int | None = None,
    seed: int = 0,
) -> Splits:
    """Read a labelled dataset and see to its three splits.

    A folder or hub dataset may bring train, dev and test. Without a labelled test split the dev split is the test
    split, so that published figures stay comparable; what is still missing is cut from train with a fixed seed.

    Args:
        source: A CSV, TSV, JSONL or Parquet file, a folder of them, a known task's name or a hub dataset's; or
            `embedded`, movie reviews that come with the extra demo.
        task: The task whose metric and columns to use, where the source's name does not say it.
        text_column: The column of the text; found by convention if not named.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
        group_column: A column of groups of texts that are to be told apart.
        problem_type: As in transformers; told from the labels if not named.
        label_names: The classes in the order to number them; sorted as the train split has them if not named.
        limit: Train on at most this many texts, drawn with the seed.
        seed: Seed of the cuts and of the draw.

    Returns:
        The splits, with labels as numbers.
    """
    known = _find_task(source, task)
    read = _read_all(source)
    columns = pick_columns(read.rows["train"], Columns(text_column, pair_column, label_column, group_column))
    tables = {name: to_table(rows, columns) for name, rows in read.rows.items()}
    if tables["train"].labels is None:
        raise InputError(
            f"'{source}': no labels found (looked for columns: {', '.join(LABEL_COLUMNS)}); name the column"
        )
    kind = problem_type or problem_of(tables["train"].labels)
    given = label_names or read.class_names
    names = given or class_names(tables["train"].labels, kind)
    numbered = {
        name: _numbered(table, kind, names, numbers_will_do=bool(given))
        for name, table in tables.items()
        if table.labels is not None
    }
    metric = known.metric if known is not None and kind == "single_label_classification" else DEFAULT_METRICS[kind]
    splits = _complete(numbered, names, kind, metric, seed)
    test = tables.get("test")
    hidden = test is not None and test.labels is None
    unlabelled = _numbered(test, kind, names, numbers_will_do=False) if test is not None and hidden else None
    notes = (*read.notes, *splits.notes)
    splits = replace(splits, notes=notes, unlabelled=unlabelled, source=Path(source).name)
    return splits if limit is None else _limited(splits, limit, seed)


def load_texts(
    source: str | Path,
    *,
    label_names: Sequence[str],
    problem_type: str,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
) -> Texts:
    """Read one file as it is, without splits; its labels, if it has any, are those of a model.

    Args:
        source: A CSV, TSV, JSONL or Parquet file.
        label_names: The model's classes, in their order.
        problem_type: What the model decides, as in transformers.
        text_column: The column of the text; found by convention if not named.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
        group_column: A column of groups of texts that are to be told apart.

    Returns:
        The texts, with labels where the file has them.
    """
    path = Path(source)
    if not path.exists() and source != EMBEDDED:
        raise InputError(f"'{source}' does not exist")
    if not path.is_file():
        raise InputError(f"'{source}' is no file; a folder or a dataset of the hub has splits to choose from")
    rows = _read_file(path)
    table = to_table(rows, pick_columns(rows, Columns(text_column, pair_column, label_column, group_column)))
    return _numbered(table, problem_type, label_names, numbers_will_do=True)


def _numbered(table: Table, kind: str, names: Sequence[str], *, numbers_will_do: bool) -> Texts:
    """Turn the labels, where there are any, into numbers."""
    labels = table.labels
    numbers = None if labels is None else label_numbers(labels, kind, names, numbers_will_do=numbers_will_do)
    return Texts(table.first, table.second, numbers, table.groups)


# ---- finding --------------------------------------------------------------------------------------------------------


def _find_task(source: str | Path, task: str | None) -> Task | None:
    """Tell the task by its name, or by that of the source where this is a task's or a folder's."""
    if task is None:
        named = Path(source).exists() or "/" not in str(source)
        return task_named(Path(source).name) if named else None
    found = task_named(task)
    if found is None:
        raise InputError(f"task '{task}' is unknown; known tasks: {', '.join(sorted(TASKS))}")
    return found


def _read_all(source: str | Path) -> Source:
    """Read every split that the source has."""
    if source == EMBEDDED:
        return read_embedded()
    path = Path(source)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"'{source}' is neither a file nor a folder")
    if path.is_file():
        return Source({"train": _read_file(path)})
    if path.is_dir():
        return _read_folder(path)
    if path.suffix.lower() in READERS or str(source).startswith((".", "/", "~")):
        raise InputError(f"'{source}' does not exist")
    return read_hub(str(source), task_named(str(source)))


def _read_folder(folder: Path) -> Source:
    """Find the splits of a folder by their files' names."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in READERS)
    found: dict[str, list[Row]] = {}
    for split, stems in SPLIT_STEMS.items():
        shards = [file for file in files if SHARD.sub("", file.stem.lower()) in stems]
        if len({(SHARD.sub("", shard.stem), shard.suffix) for shard in shards}) > 1:
            names = ", ".join(shard.name for shard in shards)
            raise InputError(f"'{folder}' has more than one {split} file: {names}; keep one")
        if shards:
            found[split] = [row for shard in shards for row in _read_file(shard)]
    if "train" not in found:
        kinds = ", ".join(READERS)
        raise InputError(f"'{folder}' has no train file; expected train, dev and test files of kind {kinds}")
    return Source(found)


def _read_file(path: Path) -> list[Row]:
    """Read one file by its kind."""
    if path.suffix.lower() not in READERS:
        raise InputError(f"'{path}' is of an unknown kind; known kinds: {', '.join(READERS)}")
    rows = list(checked(READERS[path.suffix.lower()](path)))
    if not rows:
        raise InputError(f"'{path}' has no rows")
    return rows


# ---- splits ---------------------------------------------------------------------------------------------------------


def _complete(texts: dict[str, Texts], names: Sequence[str], kind: str, metric: str, seed: int) -> Splits:
    """Cut from train whatever split is missing, and say so."""
    notes, cut = [], set()
    train, dev, test = texts["train"], texts.get("dev"), texts.get("test")
    if test is None and dev is not None:
        test, dev = dev, None
        notes.append("the dev split is the test split: there is no labelled test split")
    if test is None:
        train, test = _cut(train, kind, seed)
        cut.add("test")
        notes.append(f"the test split of {len(test)} texts was cut from train with seed {seed}")
    if dev is None:
        train, dev = _cut(train, kind, seed)
        cut.add("calibration")
        notes.append(f"the calibration split of {len(dev)} texts was cut from train with seed {seed}")
    if metric == "accuracy_and_f1" and len(names) != 2:
        metric = "accuracy"
        notes.append(f"the score is accuracy: the task's own metric is for two classes, not {len(names)}")
    return _checked(Splits(train, dev, test, names, kind, metric, tuple(notes), cut=frozenset(cut)))


def _checked(splits: Splits) -> Splits:
    """Refuse a train split that has nothing to teach, or that cutting or drawing left with nothing."""
    labels = splits.train.labels
    assert labels is not None
    if splits.problem_type != "multi_label_classification" and len(np.unique(labels)) < 2:
        raise InputError(f"the {len(splits.train)} texts left to train on all have one label; use more texts")
    return splits


def _cut(texts: Texts, kind: str, seed: int) -> tuple[Texts, Texts]:
    """Part a share from some texts, with every class in proportion where the classes are large enough."""
    from sklearn.model_selection import train_test_split

    size = min(max(round(len(texts) * CUT_SHARE), 1), CUT_MOST)
    if len(texts) < 2:
        raise InputError(f"{len(texts)} text is too few to cut a split from; give dev and test files too")
    stratify = _strata(texts, kind, size)
    kept, cut = train_test_split(np.arange(len(texts)), test_size=size, random_state=seed, stratify=stratify)
    return texts.select(np.sort(kept)), texts.select(np.sort(cut))


def _strata(texts: Texts, kind: str, size: int) -> NDArray | None:
    """Give the classes to keep in proportion, or None where a class is too small for that."""
    if kind != "single_label_classification" or texts.labels is None:
        return None
    counts = np.bincount(texts.labels)
    counts = counts[counts > 0]
    possible = counts.min() >= 2 and len(counts) <= min(size, len(texts) - size)
    return texts.labels if possible else None


def _limited(splits: Splits, limit: int, seed: int) -> Splits:
    """Draw fewer training texts."""
    if limit < 1:
        raise InputError(f"limit {limit} must be at least 1")
    if limit >= len(splits.train):
        return splits
    rows = np.sort(np.random.default_rng(seed).choice(len(splits.train), size=limit, replace=False))
    note = f"{limit} of {len(splits.train)} training texts were drawn with seed {seed}"
    return _checked(replace(splits, train=splits.train.select(rows), notes=(*splits.notes, note)))
