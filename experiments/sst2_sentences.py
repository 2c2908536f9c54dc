"""Write SST-2 with whole sentences to calibrate on, as its test split has: its training split holds phrases.

    python experiments/sst2_sentences.py DATA OUT

DATA holds the folders sst2 and sst5. The sentences are those of SST-5's test split that are not neutral: SST-2's dev
split, which is the test split here, comes from SST-5's dev split, and the phrases from its training split.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from pathlib import Path

NEUTRAL = 2  # of five classes, 0 to 4


def sentences(path: Path) -> list[tuple[str, int]]:
    """Read the sentences of a split of SST-5 that are not neutral, with the classes of SST-2."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            (row["text"], int(row["label"])) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]
    return [(text, int(label > NEUTRAL)) for text, label in rows if label != NEUTRAL]


def main() -> None:
    """Write the three splits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(arguments.data / "sst2" / "train.tsv", arguments.out / "train.tsv")
    shutil.copy(arguments.data / "sst2" / "dev.tsv", arguments.out / "test.tsv")
    lines = [f"{text}\t{label}\n" for text, label in sentences(arguments.data / "sst5" / "test.tsv")]
    (arguments.out / "dev.tsv").write_text("".join(["text\tlabel\n", *lines]), encoding="utf-8")


if __name__ == "__main__":
    main()
