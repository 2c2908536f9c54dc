"""Collect the results of `make quickstart` for the README and the documentation: figures, sentences, a picture.

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
KEPT = ("runtime", "way", "batch_size", "milliseconds", "depth", "against_plain", "rounds")  # of a timing
FIGURE = ROOT.parent / "docs" / "figures" / "quickstart.png"


def collect(folder: Path) -> dict[str, Any]:
    """Read what the steps of a quickstart wrote."""
    evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    bench = json.loads((folder / "bench" / "bench.json").read_text(encoding="utf-8"))
    policy = Policy.load(folder / "model" / "policy.json")
    if policy.certificate is None or policy.certificate.guarantee is None:
        raise SystemExit(f"the policy of {folder} has no guarantee; nothing is written")
    rows = {row["name"]: row for row in evaluation["rows"]}
    return {
        "texts": evaluation["texts"],
        "metric": evaluation["metric"],
        "guarantee": str(policy.certificate.guarantee),
        "strategy": policy.name,
        "policy": rows["policy"],
        "full": rows["full model"],
        "layers": bench["layers"],
        "timings": [{key: timing[key] for key in KEPT} for timing in bench["timings"]],
        "mean_tokens": bench["mean_tokens"],
    }


def in_words(results: dict[str, Any]) -> str:
    """Describe the results in a paragraph."""
    ours, full = (f"{100 * results[name]['score']['value']:.1f} %" for name in ("policy", "full"))
    return (
        f"On {results['texts']:,} held-out sentences: {results['metric']} {ours} against {full} of the full model,\n"
        f"with {results['policy']['speedup']:.2f} × fewer layers. Guarantee: {results['guarantee']}.\n"
        f"Wall-clock on two cores, against plain transformers at full depth:\n"
        f"{_speeds(results, 'torch')} with PyTorch;\n"
        f"{_speeds(results, 'onnx')} with ONNX Runtime,\n"
        "part of which ONNX Runtime gains without exits."
    )


def _speeds(results: dict[str, Any], runtime: str) -> str:
    """Write the wall-clock ratios of a runtime, one text at a time and in batches."""
    rows = [row for row in results["timings"] if (row["runtime"], row["way"]) == (runtime, "engine")]
    speeds = {row["batch_size"]: row["against_plain"] for row in rows}
    return f"{speeds[1]:.1f} × one text at a time and {speeds[32]:.1f} × in batches of 32"


def main() -> None:
    """Keep the results of the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    results = collect(folder)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    shutil.copy(folder / "report" / "curves.png", FIGURE)
    print(in_words(results))


if __name__ == "__main__":
    main()
