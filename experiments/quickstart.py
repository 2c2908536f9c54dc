"""What `make quickstart` came to, kept for the README: its figures, its words, its picture.

make quickstart
python experiments/quickstart.py quickstart
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from exitpoll import Policy

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "quickstart.json"
FIGURE = ROOT.parent / "docs" / "figures" / "quickstart.png"


def collect(folder: Path) -> dict[str, Any]:
    """Read what the steps wrote."""
    evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    bench = json.loads((folder / "bench" / "bench.json").read_text(encoding="utf-8"))
    policy = Policy.load(folder / "model" / "policy.json")
    if policy.certificate is None or policy.certificate.guarantee is None:
        raise SystemExit(f"the policy of {folder} has no guarantee; nothing is written")
    rows = {row["name"]: row for row in evaluation["rows"]}
    engine = [each for each in bench["timings"] if each["way"] == "engine"]
    return {
        "texts": evaluation["texts"],
        "metric": evaluation["metric"],
        "guarantee": str(policy.certificate.guarantee),
        "strategy": policy.name,
        "policy": rows["policy"],
        "full": rows["full model"],
        "clock": [{key: each[key] for key in ("runtime", "batch_size", "against_plain")} for each in engine],
        "mean_tokens": bench["mean_tokens"],
    }


def in_words(found: dict[str, Any]) -> str:
    """Say it as the README does."""
    ours, full = found["policy"], found["full"]
    scores = f"{100 * ours['score']['value']:.1f} % against {100 * full['score']['value']:.1f} % of the full model"
    clock = {each["runtime"]: each["against_plain"] for each in found["clock"] if each["batch_size"] == 1}
    times = ", ".join(f"{speed:.1f} × with {runtime}" for runtime, speed in clock.items())
    return (
        f"What `make quickstart` ends with, on {found['texts']:,} unseen sentences: {found['metric']} {scores}, with\n"
        f"{ours['speedup']:.2f} × fewer layers; promised: {found['promise']}.\n"
        f"One text at a time on two cores, against plain transformers with all layers: {times}."
    )


def main() -> None:
    """Keep what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = collect(folder)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    shutil.copy(folder / "report" / "curves.png", FIGURE)
    print(in_words(found))


if __name__ == "__main__":
    main()
