"""Write a self-exiting ONNX file: labels, policy and certificate in its metadata, checked against the export."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np

from exitpoll.data.batching import padded_columns
from exitpoll.data.splits import Texts
from exitpoll.decide.policy import Policy
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.record import exit_logits
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.export.self_exiting import SelfExitingGraph
from exitpoll.files import write_bytes

SINGLE_FILE = "self-exiting.onnx"  # in the folder of an export
TOLERANCE = {"float32": 1e-3, "int8": 0.1}  # of logits, relative to the largest: rounding may flip an int8 activation


def write_single_file(parts: Path, folder: Path, policy: Policy | None, loaded: LoadedModel, texts: Texts) -> Path:
    """Write a file that exits by itself.

    Args:
        parts: An export whose layers are separate files.
        folder: The folder of the finished export.
        policy: When to exit; by default never before the last exit.
        loaded: The finished export, which the file is compared with.
        texts: Texts to compare them on.

    Returns:
        Its path.
    """
    manifest = Manifest.load(parts)
    policy = policy or Policy(threshold=None, problem_type=manifest.problem_type)
    graph = SelfExitingGraph(parts, manifest, policy).build()
    for key, value in _metadata(manifest, policy, loaded).items():
        graph.metadata_props.add(key=key, value=value)
    write_bytes(folder / SINGLE_FILE, graph.SerializeToString())
    _check_same_logits(folder / SINGLE_FILE, manifest, loaded, texts)
    return folder / SINGLE_FILE


def _metadata(manifest: Manifest, policy: Policy, loaded: LoadedModel) -> dict[str, str]:
    """Return what a user of the file should know, as strings."""
    return {
        "exitpoll": version("exitpoll"),
        "labels": json.dumps(list(manifest.label_names), ensure_ascii=False),
        "exit_layers": json.dumps(list(manifest.exit_layers)),
        "problem_type": manifest.problem_type,
        "max_length": str(manifest.max_length),
        "fingerprint": loaded.runtime.fingerprint,
        "policy": json.dumps(policy.to_dict(), ensure_ascii=False),
    }


def _check_same_logits(path: Path, manifest: Manifest, loaded: LoadedModel, texts: Texts) -> None:
    """Check that the file, where no text exits early, has the logits of the export."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.log_severity_level = 3  # errors
    session = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    tokens = loaded.tokenize(texts)
    never = {
        "levels": np.full(len(manifest.exit_layers), np.inf, dtype=np.float32),
        "max_depth": np.array(manifest.exit_layers[-1], dtype=np.int64),
    }
    [logits] = session.run(["logits"], {**padded_columns(tokens, manifest.padding), **never})
    expected = exit_logits(loaded.runtime, tokens)
    worst = float(np.abs(logits - expected).max())
    if not worst <= TOLERANCE[manifest.precision] * max(1.0, float(np.abs(expected).max())):
        raise InputError(f"the self-exiting file does not match the export: logits differ by up to {worst:.2g}")
