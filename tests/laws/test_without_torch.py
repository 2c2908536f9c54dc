"""Running an export needs onnxruntime, tokenizers and NumPy: shown in an environment that has nothing else."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import exitpoll
from exitpoll import Engine, Policy
from tests.tiny import toy_texts

TEXTS = list(toy_texts(20, 4).first)
# What ONNX Runtime itself asks for comes with it.
DISTRIBUTIONS = ("onnxruntime", "tokenizers", "numpy", "flatbuffers", "protobuf", "packaging")
CODE = """
import importlib.util, json, sys
sys.path.insert(0, sys.argv[1])
for name in ("torch", "transformers", "scipy", "sklearn", "safetensors", "wrapt", "cyclopts", "rich"):
    assert importlib.util.find_spec(name) is None, name
import exitpoll
from exitpoll import Engine
engine = Engine.load(sys.argv[2])
found = engine(json.loads(sys.argv[3]), batch_size=4)
print(json.dumps([[each.label, round(each.probability, 4), each.depth] for each in found]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of packages: links to those named, and to exitpoll."""
    folder = tmp_path_factory.mktemp("site")
    for name in DISTRIBUTIONS:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(found.locate_file(top))
    (folder / "exitpoll").symlink_to(Path(exitpoll.__file__).parent)
    (folder / "exitpoll-0.dist-info").mkdir()
    (folder / "exitpoll-0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: exitpoll\nVersion: 0\n")
    return folder


def test_an_export_runs_without_torch(site, exported_folder):
    first = [each.probability for each in Engine.load(exported_folder, policy=Policy("max_prob", 0.0))(TEXTS)]
    Policy("max_prob", statistics.median(first)).save(exported_folder / "policy.json")
    try:
        arguments = [str(site), str(exported_folder), json.dumps(TEXTS)]
        # -I and -S: no packages but those of the folder, wherever others are installed.
        done = subprocess.run([sys.executable, "-I", "-S", "-c", CODE, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        expected = [
            [each.label, round(each.probability, 4), each.depth] for each in Engine.load(exported_folder)(TEXTS)
        ]
        assert json.loads(done.stdout) == expected
        assert len({depth for _, _, depth in expected}) > 1
    finally:
        (exported_folder / "policy.json").unlink()
