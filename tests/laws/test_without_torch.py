"""An export runs with onnxruntime, tokenizers and NumPy: tested in an environment without any other package."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

import pytest

from exitpoll import Engine, Policy
from tests.bare import DISTRIBUTIONS, link_packages
from tests.tiny import toy_texts

TEXTS = list(toy_texts(20, 4).first)
CODE = """
import importlib.util, json, sys
sys.path.insert(0, sys.argv[1])
for name in ("torch", "transformers", "scipy", "sklearn", "safetensors", "wrapt", "cyclopts", "rich"):
    assert importlib.util.find_spec(name) is None, name
import exitpoll
from exitpoll import Engine
engine = Engine.load(sys.argv[2])
predictions = engine(json.loads(sys.argv[3]), batch_size=4)
assert engine.explain(json.loads(sys.argv[3])[0]).prediction.depth == predictions[0].depth
classified = exitpoll.pipeline(sys.argv[2])(json.loads(sys.argv[3]))
assert [row["label"] for row in classified] == [row.label for row in predictions]
print(json.dumps([[row.label, round(row.probability, 4), row.depth] for row in predictions]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with links to these packages and to exitpoll."""
    return link_packages(tmp_path_factory.mktemp("site"), DISTRIBUTIONS)


def test_an_export_runs_without_torch(site, exported_folder):
    at_first_exit = Engine.load(exported_folder, policy=Policy("max_prob", 0.0))(TEXTS)
    threshold = statistics.median(prediction.probability for prediction in at_first_exit)
    Policy("max_prob", threshold).save(exported_folder / "policy.json")
    try:
        arguments = [str(site), str(exported_folder), json.dumps(TEXTS)]
        # -I and -S: no packages but those of the folder.
        done = subprocess.run([sys.executable, "-I", "-S", "-c", CODE, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        expected = [[row.label, round(row.probability, 4), row.depth] for row in Engine.load(exported_folder)(TEXTS)]
        assert json.loads(done.stdout) == expected
        assert len({depth for _, _, depth in expected}) > 1
    finally:
        (exported_folder / "policy.json").unlink()
