"""Texts a second of `predict` on one and on two Ray workers of one thread, and with two processes without Ray.

python benchmarks/cluster.py trec-bert/onnx data/trec

As benchmarks/processes.py, whose start-up time includes that of Ray here.
"""

from __future__ import annotations

import argparse
import json

from common import write_results
from exitpoll import load_model
from exitpoll.engine.inputs import read_texts
from processes import measure, ratios_of

WAYS = {  # flags of predict, by name
    "1 Ray worker": ("--cluster", "local", "--processes", "1"),
    "2 Ray workers": ("--cluster", "local", "--processes", "2"),
    "2 processes": ("--processes", "2"),
}
RATIOS = {  # what is stated, as rates of one way over those of another
    "2 Ray workers over 1": ("2 Ray workers", "1 Ray worker"),
    "2 Ray workers over 2 processes": ("2 Ray workers", "2 processes"),
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data", help="a file, or a folder with a test split")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    texts = list(read_texts(load_model(arguments.model), arguments.data, "test").texts)
    ways = measure(arguments.model, texts, arguments.rows, arguments.rounds, WAYS)
    ratios = ratios_of(ways, RATIOS)
    write_results("cluster", {"rows": arguments.rows, "ways": ways, "ratios": ratios})
    print(json.dumps(ratios, indent=2))


if __name__ == "__main__":
    main()
