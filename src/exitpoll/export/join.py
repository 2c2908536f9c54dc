"""Join the parts of an export into one graph that exits by itself, and check it against them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import batches, lengths_of, pick
from exitpoll.data.splits import Texts
from exitpoll.decide.policy import Policy
from exitpoll.engine.exit_graph import stops_of
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import exit_logits
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.export.self_exiting import SelfExitingGraph
from exitpoll.files import write_bytes
from exitpoll.models.folder import TOKENIZER

GRAPH = "model.onnx"
MOST_BYTES = (1 << 31) - (1 << 25)  # of a file: protobuf allows 2 GiB
BATCH_SIZE = 8
# How far logits may be from those of the parts: the root mean square, relative to their standard deviation. ONNX
# Runtime fuses other nodes in one graph. A last bit of difference is a whole step once activations are rounded to eight
# bits, which moves the logits of some texts by a percent or so; layers in a wrong order move all by 15 or more.
TOLERANCES = {"float32": 1e-4, "int8": 0.05}
SMALLEST_DEVIATION = 0.1  # of logits that hardly differ from each other
MOST_OTHER_ANSWERS = 0.1  # share of answers, of all exits, that may differ


def fits_one_file(parts: Path, *, shared_layers: bool = False) -> bool:
    """Return whether the parts of an export should be joined.

    Layers that share their weights stay apart: one graph of them serves texts at all depths, and in one file ONNX
    Runtime would prepack them for every depth. So do models that are larger than a file of protobuf can be.

    Args:
        parts: An export whose parts are separate files.
        shared_layers: Whether to join layers that share their weights too.

    Returns:
        Whether to join them.
    """
    manifest = Manifest.load(parts)
    size = sum((parts / name).stat().st_size for name in manifest.part_names)
    return (shared_layers or not manifest.shares_layers) and size <= MOST_BYTES


def join_parts(parts: Path, folder: Path, policy: Policy | None, texts: Texts) -> LoadedModel:
    """Write one graph with embedding, layers, heads and the decisions of a policy.

    Args:
        parts: An export whose parts are separate files.
        folder: An existing folder to write to; a graph with another policy is replaced.
        policy: When to exit. By default never before the last exit, but a call may stop at any; with a policy, only at
            exits that it asks, since every stop takes time.
        texts: Texts on which to compare the graph with its parts.

    Returns:
        The export, loaded.
    """
    manifest = Manifest.load(parts)
    exits = range(len(manifest.exit_layers))
    stops = exits if policy is None else stops_of(policy, manifest.exit_layers)
    policy = policy or Policy(threshold=None, problem_type=manifest.problem_type)
    graph = SelfExitingGraph(parts, manifest, policy, stops).build()
    for key, value in _metadata(manifest, policy, stops).items():
        graph.metadata_props.add(key=key, value=value)
    write_bytes(folder / GRAPH, graph.SerializeToString())
    shutil.copy(parts / TOKENIZER, folder / TOKENIZER)
    replace(manifest, graph=GRAPH).save(folder)
    loaded = load_exported(folder)
    _check_same(_logits(load_exported(parts), texts), _logits(loaded, texts), manifest.precision)
    return loaded


def _metadata(manifest: Manifest, policy: Policy, stops: Sequence[int]) -> dict[str, str]:
    """Return what a user of the file should know, as strings."""
    return {
        "exitpoll": version("exitpoll"),
        "labels": json.dumps(list(manifest.label_names), ensure_ascii=False),
        "exit_layers": json.dumps(list(manifest.exit_layers)),
        "stops": json.dumps(list(stops)),
        "problem_type": manifest.problem_type,
        "max_length": str(manifest.max_length),
        "fingerprint": replace(manifest, graph=GRAPH).fingerprint,
        "policy": json.dumps(policy.to_dict(), ensure_ascii=False),
    }


def _logits(loaded: LoadedModel, texts: Texts) -> NDArray:
    """Compute the logits of all exits, (texts, exits, classes)."""
    tokens = loaded.tokenize(texts)
    rows = list(batches(lengths_of(tokens), BATCH_SIZE))
    return np.concatenate([exit_logits(loaded.runtime, pick(tokens, some)) for some in rows])


def _check_same(expected: NDArray, logits: NDArray, precision: str) -> None:
    """Refuse a graph whose logits, (texts, exits, classes), are not those of its parts."""
    error = float(np.sqrt(np.mean((logits - expected) ** 2))) / max(float(expected.std()), SMALLEST_DEVIATION)
    others = float((logits.argmax(axis=-1) != expected.argmax(axis=-1)).mean())
    if error <= TOLERANCES[precision] and others <= MOST_OTHER_ANSWERS:  # NaN is not
        return
    raise InputError(
        f"the joined graph does not match its parts: logits differ by {100 * error:.2g} % of their standard "
        f"deviation, where {100 * TOLERANCES[precision]:.2g} % is usual for {precision}, by up to "
        f"{np.abs(logits - expected).max():.2g}; {100 * others:.2g} % of the answers differ"
    )
