"""The self-exiting file: what it holds, and that it answers as the engine does, in plain ONNX Runtime."""

import json
import shutil
import subprocess
import sys
from unittest import mock

import numpy as np
import onnx
import pytest

from exitpoll import Engine, InputError, Policy
from exitpoll.engine.exit_graph import check_can_run
from exitpoll.engine.loading import load_model
from exitpoll.engine.walks import PastExits
from exitpoll.export import graphs
from exitpoll.export.export import export_model
from exitpoll.server.policies import load_policies
from exitpoll.server.worker_pool import without_weights
from tests.bare import DISTRIBUTIONS, link_others
from tests.tiny import tiny_tokenizer, toy_texts

TEXTS = list(toy_texts(20, 4).first)
PLAIN = """
import json, sys
sys.path.insert(0, sys.argv[3])
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer
folder, texts = sys.argv[1], json.loads(sys.argv[2])
session = InferenceSession(folder + "/model.onnx")
labels = json.loads(session.get_modelmeta().custom_metadata_map["labels"])
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
tokenizer.enable_padding()
encoded = tokenizer.encode_batch(texts)
tokens = {"input_ids": [text.ids for text in encoded], "attention_mask": [text.attention_mask for text in encoded],
          "token_type_ids": [text.type_ids for text in encoded]}
label, depth = session.run(["label", "depth"], {name: np.array(rows) for name, rows in tokens.items()})
print(json.dumps([[labels[number] for number in label], depth.tolist()]))
"""


@pytest.fixture(scope="module")
def export(model_folder, tmp_path_factory):
    """A trained model with a policy by which texts leave at different exits, and its export."""
    folder = shutil.copytree(model_folder, tmp_path_factory.mktemp("single") / "model")
    scores = [row.probability for row in Engine.load(folder, policy=Policy("max_prob", 0.0))(TEXTS)]
    Policy("max_prob", float(np.median(scores))).save(folder / "policy.json")
    return export_model(str(folder), folder / "onnx")


def test_it_answers_as_the_engine_does_in_plain_onnx_runtime(export, tmp_path):
    """In an environment that has ONNX Runtime, a tokenizer and NumPy, and not exitpoll."""
    arguments = [str(export.folder), json.dumps(TEXTS), str(link_others(tmp_path, DISTRIBUTIONS))]
    done = subprocess.run([sys.executable, "-I", "-S", "-c", PLAIN, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    predictions = Engine.load(export.folder)(TEXTS)
    assert json.loads(done.stdout) == [[row.label for row in predictions], [row.depth for row in predictions]]
    assert len({row.depth for row in predictions}) > 1


def test_it_stops_where_its_policy_asks_alone(model_folder, tmp_path):
    """Texts wait at these exits and are joined there; a policy that asks others is refused."""
    folder = shutil.copytree(model_folder, tmp_path / "model")
    scores = [row.probability for row in Engine.load(folder, policy=Policy("max_prob", 0.0, exit_layers=(2, 3)))(TEXTS)]
    policy = Policy("max_prob", float(np.median(scores)), exit_layers=(2, 3))
    policy.save(folder / "policy.json")
    exported = export_model(str(folder), folder / "onnx")
    engine, in_torch = Engine.load(exported.folder), Engine.load(folder, policy=policy)
    texts = TEXTS * 20
    assert [row.depth for row in engine(texts)] == [row.depth for row in in_torch(texts)]
    assert {row.depth for row in engine(texts)} == {2, 3}
    with pytest.raises(InputError, match="this export can stop after layers 2, 3 alone"):
        Engine.load(exported.folder, policy=Policy("max_prob", 0.5))(TEXTS)
    assert {row.depth for row in Engine.load(exported.folder, policy=Policy())(TEXTS)} == {3}
    _check_served(exported.folder)


def _check_served(folder):
    """A server refuses at its start, or in the answer, what the export cannot stop for: not while it runs."""
    model = load_model(folder, threads=1)
    for loaded in (model, without_weights(model)):
        assert set(load_policies(loaded, folder)) == {"default", "full"}
        check_can_run(loaded.runtime, Policy(max_depth=2))
        with pytest.raises(InputError, match="this export can stop after layers 2, 3 alone"):
            check_can_run(loaded.runtime, Policy(max_depth=1))
        with pytest.raises(InputError, match="this export can stop after layers 2, 3 alone"):
            load_policies(loaded, folder, Policy("max_prob", 0.5))


def test_its_metadata_hold_labels_policy_and_fingerprint(export):
    assert export.exits_by_itself
    model = onnx.load(export.folder / "model.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    loaded = Engine.load(export.folder)
    assert json.loads(metadata["labels"]) == list(loaded.model.label_names)
    assert json.loads(metadata["policy"]) == loaded.policy.to_dict()
    assert metadata["fingerprint"] == loaded.runtime.fingerprint
    assert isinstance(loaded.walk, PastExits)
    onnx.checker.check_model(model)


def test_a_model_whose_layers_share_weights_is_one_file_on_request(tiny_models, tmp_path):
    tiny = tiny_models("albert")
    tiny.model.save_pretrained(tmp_path / "albert")
    tiny_tokenizer().save_pretrained(tmp_path / "albert")
    with mock.patch.object(graphs, "_translate", lambda spec: tiny.translated[spec.file]):
        assert tiny.graphs
        parts = export_model(tmp_path / "albert", tmp_path / "parts")
        one = export_model(tmp_path / "albert", tmp_path / "one", single_file=True)
    assert (parts.exits_by_itself, one.exits_by_itself) == (False, True)
    labels = [[row.label for row in Engine.load(export.folder)(TEXTS)] for export in (parts, one)]
    assert labels[0] == labels[1]
