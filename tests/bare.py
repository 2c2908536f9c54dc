"""Folders with links to a few packages, to run exitpoll in an environment that has no others."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import exitpoll

# What running an export needs; the last three are dependencies of ONNX Runtime.
DISTRIBUTIONS = ("onnxruntime", "tokenizers", "numpy", "flatbuffers", "protobuf", "packaging")
# What serving one from the command line needs beside them: cyclopts, starlette, uvicorn and their dependencies.
SERVER = (
    *DISTRIBUTIONS,
    *("cyclopts", "attrs", "docstring-parser", "rich", "rich-rst", "pygments", "markdown-it-py", "mdurl"),
    *("starlette", "anyio", "idna", "typing-extensions", "uvicorn", "click", "h11", "httptools", "uvloop"),
    "prometheus-client",
)


def link_others(folder, names):
    """Link packages in a folder, and return it; `python -I -S` with it in sys.path has no others."""
    for name in names:
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(package.locate_file(top))
    return folder


def link_packages(folder, names):
    """Link packages and exitpoll in a folder, and return it."""
    link_others(folder, names)
    (folder / "exitpoll").symlink_to(Path(exitpoll.__file__).parent)
    (folder / "exitpoll-0.dist-info").mkdir()
    (folder / "exitpoll-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: exitpoll\nVersion: 0\n")
    return folder
