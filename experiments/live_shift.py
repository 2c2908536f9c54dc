"""Serve a model that was calibrated on movie reviews: held-out reviews first, then texts of other kinds.

One kind is sentences from the docstrings of Python's standard library. The other is sentences with "but" from IMDb
reviews, chosen because early heads and the last one read them differently: most kinds that were tried, among them code,
whole IMDb reviews and fragments of reviews, do not break the guarantee. All texts are audited, and the default steps
back when its guarantee breaks. The model is a small one for the embedded data; that of `make quickstart` does too:

exitpoll train --encoder embedded --data embedded --out reviews --epochs 1 --limit 4000
exitpoll record reviews --data embedded --split calibration --out calibration.npz
exitpoll calibrate reviews --trace calibration.npz --max-disagreement 0.02
python experiments/live_shift.py reviews
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np

from exitpoll import Engine, load_splits
from exitpoll.data.demo import REVIEWS, TABLE, package_folder
from exitpoll.data.rows import checked
from exitpoll.data.separated import read_csv

RESULTS = Path(__file__).parent / "results" / "live_shift.json"
TEXTS, AT_ONCE = 1000, 20
WORDS = range(6, 40)  # in a sentence


def docstring_sentences(texts: int, seed: int = 0) -> list[str]:
    """Draw sentences from the docstrings of Python's standard library."""
    found: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, documented) else None
            found += [line for line in sentences(text or "") if re.match(r"[A-Z][a-z]+ .*\.$", line)]
    return drawn(found, texts, seed)


def turning_sentences(texts: int, seed: int = 0) -> list[str]:
    """Draw sentences with "but" from the IMDb reviews of the extra `demo`."""
    rows = checked(read_csv(package_folder(REVIEWS, "the embedded data") / TABLE))
    reviews = (str(row.values["text"]) for row in rows if row.values["source"] == "imdb")
    return drawn([line for review in reviews for line in sentences(review) if " but " in line], texts, seed)


def sentences(text: str) -> list[str]:
    """Split a text into sentences, without very short and very long ones."""
    parts = (" ".join(part.split()) for part in re.split(r"(?<=[.!?])\s+|\n\n|<br />", text))
    return [part for part in parts if len(part.split()) in WORDS]


def drawn(found: list[str], texts: int, seed: int) -> list[str]:
    """Draw some texts, in lower case as the reviews are."""
    return [str(text).lower() for text in np.random.default_rng(seed).permutation(sorted(set(found)))[:texts]]


def serve(folder: Path, texts: list[str]) -> dict[str, Any]:
    """Serve texts, audit all of them, and return what the server found.

    Args:
        folder: The model.
        texts: What clients ask.

    Returns:
        After how many audited texts alarms came, by policy; and what the status says at the end.
    """
    from starlette.testclient import TestClient

    from exitpoll.server.app import build_app
    from exitpoll.server.service import Service
    from exitpoll.server.settings import ServerSettings

    engine = Engine.load(folder)
    settings = ServerSettings(audit=1.0, step_back=True)
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
        "shift": status["shifts"]["default"],
    }


def in_words(results: dict[str, Any]) -> str:
    """Describe the results as a table."""
    lines = [
        "| texts | differ, by `default` | alarm after | answered by | unlike the calibration texts |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in results["domains"].items():
        watched = row["guarantees"]["default"]
        alarm = "none" if row["alarm_after"]["default"] is None else f"{row['alarm_after']['default']} texts"
        used = ", ".join(f"`{policy}` {count}" for policy, count in row["answered_by"].items())
        found = "no" if row["shift"]["shift"] is None else "yes"
        found = found if row["shift"]["windows"] else "fewer than a window"
        differ = f"{watched['differing']} of {watched['texts']}"
        lines.append(f"| {row['texts']} {name} | {differ} | {alarm} | {used} | {found} |")
    return "\n".join(lines)


def main() -> None:
    """Serve all kinds of texts, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    folder = parser.parse_args().model
    domains = {
        "held-out reviews": [str(text) for text in load_splits("embedded").test.first][:TEXTS],
        "sentences of Python's docstrings": docstring_sentences(TEXTS),
        "IMDb sentences with “but”": turning_sentences(TEXTS),
    }
    results = {"domains": {name: serve(folder, texts) for name, texts in domains.items()}}
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(in_words(results))


if __name__ == "__main__":
    main()
