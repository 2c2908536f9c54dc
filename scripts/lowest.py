"""Install exitpoll with the lowest versions it claims to work with, in a new environment, and run a smoke test.

python scripts/lowest.py [--python PATH] [--newest]

Every lower bound of the dependencies and of the extras data, onnx and plots in pyproject.toml is pinned. Where that
version has no wheel for the Python in use, the lowest later version that has one is taken, and the output says so.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("data", "onnx", "plots")
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)\s*>=\s*(?P<lowest>\d+(\.\d+)*)")
FINAL = re.compile(r"\d+(\.\d+)*")  # neither a pre-release nor a local build


class Bound(NamedTuple):
    """A lower bound stated in pyproject.toml."""

    name: str
    lowest: str


def main() -> None:
    """Make the environment, install, run the smoke test."""
    parser = argparse.ArgumentParser(description="Test exitpoll with the lowest versions of its dependencies.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to use; this one by default")
    parser.add_argument("--newest", action="store_true", help="install the newest versions instead")
    arguments = parser.parse_args()
    os.environ.pop("PYTHONPATH", None)  # nothing but the wheel may be imported
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        bounds = read_bounds()
        print(f"==> making an environment with {arguments.python}", flush=True)
        run(arguments.python, "-m", "venv", str(folder / "env"))
        python = str(folder / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python")
        run(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip")
        wheel = build_wheel(python, folder)
        pins = [] if arguments.newest else [lowest_pin(python, bound) for bound in bounds]
        (folder / "pins.txt").write_text("".join(pin + "\n" for pin in pins), encoding="utf-8")
        print(f"==> installing {wheel.name} with its {'newest' if arguments.newest else 'lowest'} versions", flush=True)
        install = [python, "-m", "pip", "install", "--progress-bar", "off", "--only-binary", ":all:"]
        run(*install, "--constraint", str(folder / "pins.txt"), f"{wheel}[{','.join(EXTRAS)}]", quiet=True)
        show_versions(python, bounds)
        print("==> smoke test", flush=True)
        run(python, str(ROOT / "scripts" / "smoke.py"))


def read_bounds() -> list[Bound]:
    """Read the lower bounds from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in EXTRAS:
        requirements += project["optional-dependencies"][extra]
    bounds = []
    for requirement in requirements:
        match = REQUIREMENT.match(requirement)
        if match is None:
            sys.exit(f"'{requirement}' in pyproject.toml has no lower bound; write name>=version")
        bounds.append(Bound(match["name"], match["lowest"]))
    return bounds


def build_wheel(python: str, folder: Path) -> Path:
    """Build the wheel of this checkout."""
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "wheels"), str(ROOT))
    [wheel] = (folder / "wheels").glob("exitpoll-*.whl")
    return wheel


def lowest_pin(python: str, bound: Bound) -> str:
    """Pin a dependency to the lowest version that its bound allows and that has a wheel for this Python."""
    command = [python, "-m", "pip", "index", "versions", "--only-binary", ":all:", bound.name]
    listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    versions = re.search(r"Available versions: (.*)", listed)
    finals = [version for version in (versions[1] if versions else "").split(", ") if FINAL.fullmatch(version)]
    allowed = [version for version in finals if numbers(version) >= numbers(bound.lowest)]
    if not allowed:
        sys.exit(f"{bound.name} has no wheel at or above {bound.lowest} for this Python")
    lowest = min(allowed, key=numbers)
    if numbers(lowest) != numbers(bound.lowest):
        print(f"{bound.name} {bound.lowest} has no wheel for this Python; {lowest} is the lowest that has", flush=True)
    return f"{bound.name}=={lowest}"


def numbers(version: str) -> tuple[int, ...]:
    """Split a final release into its numbers, trailing zeros left out: 5.22 and 5.22.0 are the same version."""
    return tuple(map(int, re.sub(r"(\.0)+$", "", version).split(".")))


def show_versions(python: str, bounds: list[Bound]) -> None:
    """Print the installed version of every dependency beside its bound."""
    script = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]), sep='\\n')"
    names = [bound.name for bound in bounds]
    shown = subprocess.run([python, "-c", script, *names], check=True, stdout=subprocess.PIPE, text=True).stdout
    for bound, version in zip(bounds, shown.split(), strict=True):
        print(f"{bound.name:18}{version:16}(>= {bound.lowest})")
    run(python, "--version")


def run(*command: str, quiet: bool = False) -> None:
    """Run a command and stop if it fails; a quiet one shows its output only then."""
    done = subprocess.run(command, stdout=subprocess.PIPE if quiet else None, text=True)
    if done.returncode:
        print(done.stdout or "")
        sys.exit(f"failed with exit code {done.returncode}: {' '.join(command)}")


if __name__ == "__main__":
    main()
