"""Serve a model that was calibrated on movie reviews: held-out reviews first, then texts of another domain.

The other domain is sentences from the docstrings of Python's standard library, which every reader has. All texts are
audited, and the default steps back when its guarantee breaks. Needs the model of `make quickstart`:

make quickstart
python experiments/live_shift.py quickstart/model
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np

from exitpoll import Engine, load_splits

RESULTS = Path(__file__).parent / "results" / "live_shift.json"
TEXTS, AT_ONCE = 1000, 20
WORDS = range(6, 40)  # in a sentence


def docstring_sentences(texts: int, seed: int = 0) -> list[str]:
    """Draw sentences from the docstrings of Python's standard library."""
    found: set[str] = set()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            for sentence in re.split(r"(?<=[.!?])\s+|\n\n", text or ""):
                line = " ".join(sentence.split())
                if len(line.split()) in WORDS and re.match(r"[A-Z][a-z]+ .*\.$", line):
                    found.add(line.lower())
    return [str(text) for text in np.random.default_rng(seed).permutation(sorted(found))[:texts]]


def serve(folder: Path, texts: list[str], *, step_back: bool) -> dict[str, Any]:
    """Serve texts, audit all of them, and return what the server found.

    Args:
        folder: The model.
        texts: What clients ask.
        step_back: Whether the default becomes more cautious at an alarm.

    Returns:
        After how many audited texts alarms came, by policy; and what the status says at the end.
    """
    from starlette.testclient import TestClient

    from exitpoll.server.app import build_app
    from exitpoll.server.service import Service
    from exitpoll.server.settings import ServerSettings

    engine = Engine.load(folder)
    settings = ServerSettings(audit=1.0, step_back=step_back)
    service = Service(engine.model, folder=folder, settings=settings, costs=engine.costs, name="reviews")
    used: dict[str, int] = {}
    with TestClient(build_app(service)) as client:
        for start in range(0, len(texts), AT_ONCE):
            answer = client.post("/v1/predict", json={"texts": texts[start : start + AT_ONCE]}).json()
            used[answer["policy"]] = used.get(answer["policy"], 0) + len(answer["predictions"])
            while service.audits.waiting:
                time.sleep(0.002)
        status = client.get("/v1/status").json()
    return {
        "texts": len(texts),
        "answered_by": used,
        "alarm_after": {name: monitor.alarm_after for name, monitor in service.audits.monitors.items()},
        "guarantees": {name: row for name, row in status["guarantees"].items() if row["texts"]},
        "shifts": status["shifts"],
    }


def in_words(results: dict[str, Any]) -> str:
    """Describe the results in a paragraph."""
    reviews, others, back = (results[name] for name in ("reviews", "docstrings", "docstrings, stepping back"))
    held, broken = reviews["guarantees"]["default"], others["guarantees"]["default"]
    steps = ", then ".join(f"{count} texts by `{name}`" for name, count in back["answered_by"].items())
    means = others["shifts"]["default"]["means"]["probability"]
    return (
        f"A run, with the guarantee of a model for movie reviews and every text audited: of {held['texts']} held-out reviews\n"
        f"{held['differing']} were answered otherwise than by the full model, without an alarm. Of {broken['texts']} sentences "
        f"from Python's\ndocstrings {broken['differing']} were, and the alarm came after "
        f"{others['alarm_after']['default']}; the histograms differed in the first window\n(mean probability "
        f"{means['live']:.2f} against {means['calibration']:.2f} at calibration). Stepping back, the server answered "
        f"{steps}."
    )


def main() -> None:
    """Serve both domains, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    folder = parser.parse_args().model
    reviews = [str(text) for text in load_splits("embedded").test.first][:TEXTS]
    others = docstring_sentences(TEXTS)
    results = {
        "python": ".".join(map(str, sys.version_info[:2])),
        "reviews": serve(folder, reviews, step_back=True),
        "docstrings": serve(folder, others, step_back=False),
        "docstrings, stepping back": serve(folder, others, step_back=True),
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
