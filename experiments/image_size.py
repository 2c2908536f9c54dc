"""Measure what deploy/Dockerfile installs: the packages of a server without torch, in a fresh virtual environment.

python experiments/image_size.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "image_size.json"
LARGEST = 5  # packages that are named


def measure(folder: Path) -> dict[str, Any]:
    """Install as the Dockerfile does, and add up the files.

    Args:
        folder: Where to make the environment.

    Returns:
        Megabytes of all packages, and of the largest ones.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*install, "-r", str(ROOT / "deploy" / "requirements.txt")], check=True)
    subprocess.run([*install, "--no-deps", str(ROOT)], check=True)
    subprocess.run([str(python), "-m", "exitpoll", "serve", "--help"], check=True, stdout=subprocess.DEVNULL)
    [packages] = folder.glob("lib/python*/site-packages")
    subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip"], check=True)
    sizes = {path.name: megabytes(path) for path in packages.iterdir()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:LARGEST]
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        "total_mb": round(sum(sizes.values())),
        "largest_mb": {name: round(sizes[name]) for name in largest},
    }


def megabytes(path: Path) -> float:
    """Return the size of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def in_words(results: dict[str, Any]) -> str:
    """Describe the results in a sentence."""
    largest = ", ".join(f"{name} {size}" for name, size in results["largest_mb"].items())
    return (
        f"What it installs takes {results['total_mb']} MB in a fresh environment (Python {results['python']}; "
        f"the largest, in MB: {largest}),\non top of `python:3.13-slim`. The model is not in the image: it is mounted."
    )


def main() -> None:
    """Measure, and write the results."""
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder))
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(in_words(results))


if __name__ == "__main__":
    main()
