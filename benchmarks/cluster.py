"""Texts a second of `predict` on one and on two Ray workers of one thread, and with two processes without Ray.

python benchmarks/cluster.py trec-bert/onnx data/trec

As benchmarks/processes.py, whose start-up time includes that of Ray here.
"""

from __future__ import annotations

from processes import main

WAYS = {  # flags of predict, by name
    "1 Ray worker": ("--cluster", "local", "--processes", "1"),
    "2 Ray workers": ("--cluster", "local", "--processes", "2"),
    "2 processes": ("--processes", "2"),
}
RATIOS = {  # what is stated, as rates of one way over those of another
    "2 Ray workers over 1": ("2 Ray workers", "1 Ray worker"),
    "2 Ray workers over 2 processes": ("2 Ray workers", "2 processes"),
}


if __name__ == "__main__":
    main("cluster", __doc__, 50_000, WAYS, RATIOS)
