"""Shared by the scripts that kill things: the file of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from exitpoll.files import read_json, write_json

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "kills.json"


def keep(name: str, kills: Sequence[Mapping[str, object]]) -> int:
    """Enter what came of every kill into the file of results.

    Args:
        name: What was killed.
        kills: What came of each; `passed` says whether it was well.

    Returns:
        The exit code of a script: 0 if all passed.
    """
    passed = sum(bool(kill["passed"]) for kill in kills)
    write_json(RESULTS, {**(read_json(RESULTS) or {}), name: {"passed": passed, "of": len(kills), "kills": kills}})
    print(f"{name}: {passed} of {len(kills)} passed")
    return 0 if passed == len(kills) else 1
