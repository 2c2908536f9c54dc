"""The model card, README.md of every model folder, as the hub shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from exitpoll.decide.policy import Policy
from exitpoll.errors import InputError
from exitpoll.files import read_json, write_text
from exitpoll.models.folder import CARD, CONFIG, MANIFEST, POLICY, TRAINING

OURS = "<!-- Written by exitpoll; remove this line and exitpoll leaves the card alone. -->"
HEADER = """---
library_name: exitpoll
pipeline_tag: text-classification
tags:
- early-exit
- text-classification
---"""


def write_card(folder: Path) -> None:
    """Write the card of a model folder, unless someone has written another.

    Args:
        folder: What `exitpoll train` or `exitpoll export` wrote.
    """
    path = folder / CARD
    if not path.exists() or OURS in path.read_text(encoding="utf-8", errors="replace"):
        titles = [line for line in _lines(path) if line.startswith("# ")]
        write_text(path, model_card(folder, titles[0][2:] if titles else folder.resolve().name))


def model_card(folder: Path, name: str) -> str:
    """Say what a model folder holds: its exits, how good they are, when texts leave, how it was trained.

    Args:
        folder: The folder.
        name: What to call the model.

    Returns:
        Markdown.
    """
    summary, exported = (read_json(folder / file) or {} for file in (TRAINING, MANIFEST))
    policy = _policy(folder / POLICY)
    parts = [HEADER, OURS, f"# {name}", *_what(folder, exported), *_use(exported)]
    of = "the float32 model's " if exported.get("precision") == "int8" else ""
    parts += [*_exits(summary, of), *_leaving(policy), *_training(summary)]
    return "\n\n".join(parts) + "\n"


def _what(folder: Path, exported: Mapping[str, Any]) -> Iterator[str]:
    """Say what it is."""
    config = read_json(folder / CONFIG) or {}
    layers = exported.get("exit_layers") or config.get("exit_layers") or []
    labels = exported.get("label_names") or list((config.get("id2label") or {}).values())
    encoder = (config.get("encoder") or {}).get("model_type")
    kind = f"an encoder of type {encoder}" if encoder else "an encoder"
    form = f", exported for ONNX Runtime in {exported['precision']}" if exported else ""
    yield (
        f"A text classifier that stops reading as soon as it is sure: {kind} with a head at each of {len(layers)} "
        f"exits, the last after layer {layers[-1] if layers else '?'}{form}."
    )
    if labels:
        names = (str(label).replace("`", "´") for label in labels)
        yield "Labels: " + ", ".join(f"`{name}`" for name in names) + "."


def _use(exported: Mapping[str, Any]) -> Iterator[str]:
    """Show how to use it."""
    needs = "'exitpoll[onnx]'" if exported else "exitpoll"
    yield f"## Use\n\n```python\n# pip install {needs}\nfrom exitpoll import Engine\n"
    yield 'engine = Engine.load("this folder")\nprint(engine(["a text", "another text"]))\n```'


def _exits(summary: Mapping[str, Any], of: str) -> Iterator[str]:
    """Tabulate the score of every exit."""
    layers, scores = summary.get("exit_layers"), summary.get("scores")
    if not layers or not isinstance(scores, Mapping):
        return
    splits = [name for name in ("calibration", "test") if name in scores]
    counts = summary.get("texts", {})
    titles = [f"{name}, {counts[name]} texts" if name in counts else name for name in splits]
    rows = [_row(["after layer", *titles]), _row(["---"] * (1 + len(splits)))]
    for number, layer in enumerate(layers):
        rows.append(_row([str(layer), *(f"{100 * scores[name]['exit_scores'][number]:.1f}" for name in splits)]))
    yield f"## Exits\n\n{of}{summary.get('metric')}, in %, if every text left there:\n\n" + "\n".join(rows)


def _leaving(policy: Policy | None) -> Iterator[str]:
    """Describe when texts exit, and what is guaranteed."""
    yield "## When texts leave"
    if policy is None:
        yield "There is no policy yet, and no text leaves early: `exitpoll calibrate` finds one."
        return
    if policy.threshold is None:
        cap = policy.max_depth
        yield "No text leaves early." if cap is None else f"Every text leaves at the last exit within {cap} layers."
        return
    certificate = policy.certificate
    fast = "" if certificate is None else f", {certificate.speedup:.2f} × fewer layers on average"
    yield f"By `{policy.name}`{fast}."
    if certificate is not None and certificate.guarantee is not None:
        yield f"Guarantee: {certificate.guarantee}, for texts like the {certificate.texts} it was certified on."


def _training(summary: Mapping[str, Any]) -> Iterator[str]:
    """Say how it was trained."""
    settings = summary.get("settings")
    if not isinstance(settings, Mapping):
        return
    yield "## Training"
    made, read = (summary.get(name) for name in ("encoder", "data"))
    if made or read:
        yield "From " + " on ".join(f"`{name}`" for name in (made or "an encoder", read or "texts")) + "."
    said = ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
    yield f"exitpoll {summary.get('exitpoll')}: {said}."
    if summary.get("notes"):
        yield "\n".join(f"- {note}" for note in summary["notes"])


def _lines(path: Path) -> list[str]:
    """Read the lines of an older card, if there is one."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def _policy(path: Path) -> Policy | None:
    """Read the policy, if there is one that can be read."""
    try:
        return Policy.load(path) if path.exists() else None
    except InputError:
        return None


def _row(cells: Sequence[str]) -> str:
    """Write a row of a table."""
    return f"| {' | '.join(cells)} |"
