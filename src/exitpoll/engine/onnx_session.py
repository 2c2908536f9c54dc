"""Sessions of ONNX Runtime: how many threads they use, and what is checked when a graph is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from exitpoll.errors import InputError, MissingExtraError

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime 1.29 and later would report their use

CPU_LIMIT = Path("/sys/fs/cgroup/cpu.max")  # microseconds of CPU time in a period, and the period

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions


class Graph:
    """One ONNX graph, ready to run."""

    def __init__(self, path: Path, output: str, options: SessionOptions) -> None:
        """Load the graph, and check the name of its first output.

        Args:
            path: Its file.
            output: What its first output must be.
            options: Of the session.
        """
        from onnxruntime import InferenceSession

        if not path.is_file():
            raise InputError(f"'{path}' is missing; export the model again")
        try:
            session: InferenceSession = InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime has a class of its own for every way in which a file can be broken
            raise InputError(f"'{path}' cannot be loaded: {error}; export the model again") from error
        self.run = session.run
        self.inputs = [tensor.name for tensor in session.get_inputs()]
        self.outputs = [tensor.name for tensor in session.get_outputs()]
        self.metadata: Mapping[str, str] = session.get_modelmeta().custom_metadata_map
        if self.outputs[0] != output:
            raise InputError(f"'{path}' computes {self.outputs[0]}, not {output}; export the model again")
        self.shapes = {tensor.name: tensor.shape for tensor in session.get_outputs()}  # names and None are of any size

    def __call__(self, tensors: Mapping[str, NDArray]) -> Sequence[NDArray]:
        """Run the graph on those of the tensors that are inputs of it."""
        return self.run(None, {name: tensors[name] for name in self.inputs})


def usable_cores() -> int:
    """Return the number of cores that this process may use, which a container may limit by time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, CPU_LIMIT.read_text(encoding="utf-8").split())
    except (OSError, ValueError):  # there is no limit
        return cores
    return max(1, min(cores, math.ceil(quota / max(1, period))))


def session_options(threads: int, *, only: bool = False) -> SessionOptions:
    """Return the options of a graph.

    Args:
        threads: How many threads it uses.
        only: Whether it is the only graph with threads. Otherwise they must not spin when it is done: by default they
            spin for work while those of the next graph need the cores, which is up to ten times slower.

    Returns:
        The options.
    """
    try:
        from onnxruntime import SessionOptions
    except ImportError as error:
        raise MissingExtraError("running an exported model", "onnx") from error
    options = SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # planning memory for every new length costs more than it saves
    if not only:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options
