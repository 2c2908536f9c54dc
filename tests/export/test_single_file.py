"""The self-exiting file: what it holds, and that it answers as the engine does, in plain ONNX Runtime."""

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest

from exitpoll import Engine, InputError, Policy, Texts
from exitpoll.export import single_file
from exitpoll.export.export import export_model
from exitpoll.export.single_file import SINGLE_FILE, write_single_file
from tests.tiny import toy_texts

TEXTS = list(toy_texts(20, 4).first)
PLAIN = """
import json, sys
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer
folder, texts = sys.argv[1], json.loads(sys.argv[2])
session = InferenceSession(folder + "/self-exiting.onnx")
labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.enable_padding()
encoded = tokenizer.encode_batch(texts)
tokens = {"input_ids": [text.ids for text in encoded], "attention_mask": [text.attention_mask for text in encoded],
          "token_type_ids": [text.type_ids for text in encoded]}
label, depth = session.run(["label", "depth"], {name: np.array(rows) for name, rows in tokens.items()})
assert "exitpoll" not in sys.modules
print(json.dumps([[labels[number] for number in label], depth.tolist()]))
"""


@pytest.fixture(scope="module")
def export(model_folder, tmp_path_factory):
    """A trained model with a policy by which texts leave at different exits, exported with a single file."""
    folder = shutil.copytree(model_folder, tmp_path_factory.mktemp("single") / "model")
    scores = [row.probability for row in Engine.load(folder, policy=Policy("max_prob", 0.0))(TEXTS)]
    Policy("max_prob", float(np.median(scores))).save(folder / "policy.json")
    return export_model(str(folder), folder / "onnx", single_file=True)


def test_it_answers_as_the_engine_does_in_plain_onnx_runtime(export):
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(export.folder), json.dumps(TEXTS)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    predictions = Engine.load(export.folder)(TEXTS)
    assert json.loads(done.stdout) == [[row.label for row in predictions], [row.depth for row in predictions]]
    assert len({row.depth for row in predictions}) > 1


def test_its_metadata_hold_labels_policy_and_fingerprint(export):
    assert export.single_file == SINGLE_FILE
    model = onnx.load(export.folder / SINGLE_FILE)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    loaded = Engine.load(export.folder)
    assert json.loads(metadata["labels"]) == list(loaded.model.label_names)
    assert json.loads(metadata["policy"]) == loaded.policy.to_dict()
    assert metadata["fingerprint"] == loaded.runtime.fingerprint
    onnx.checker.check_model(model)


def test_a_file_that_differs_from_the_export_is_refused(export, graphs_folder, tmp_path, monkeypatch):
    loaded = Engine.load(export.folder).model
    monkeypatch.setattr(single_file, "exit_logits", lambda *_: np.ones(1) * 1e3)
    with pytest.raises(InputError, match="does not match the export"):
        write_single_file(graphs_folder, tmp_path, None, loaded, Texts(TEXTS[:2]))
