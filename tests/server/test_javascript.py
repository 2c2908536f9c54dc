"""@huggingface/inference under Node.js, unmodified, against a served model; under overload it does not storm.

NODE_PATH names the folder of the package, or npm install @huggingface/inference.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from exitpoll import Engine
from tests.server.conftest import POLICIES, listening_to, model_of, wait_until
from tests.server.test_limits import Gated
from tests.web.javascript import NODE, PACKAGES, run_node

pytest.importorskip("uvicorn", reason="the extra server is not installed")
pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from exitpoll.server.service import Service
from exitpoll.server.settings import ServerSettings

pytestmark = pytest.mark.skipif(
    NODE is None or not (PACKAGES / "@huggingface" / "inference").is_dir(), reason="there is no @huggingface/inference"
)
SCRIPT = Path(__file__).with_name("inference_in_node.mjs")


def ask_in_node(port, texts):
    return json.loads(run_node(SCRIPT, json.dumps({"address": f"http://127.0.0.1:{port}/", "texts": texts})))


def requests_by_code(service):
    """Requests of the Hugging Face dialect that were answered, by status."""
    [family] = service.metrics.requests.collect()
    samples = [sample for sample in family.samples if sample.name.endswith("_total") and sample.labels["route"] == "/"]
    return {sample.labels["code"]: int(sample.value) for sample in samples}


def test_it_reads_the_engines_answers():
    texts = ["a b", "c"]
    with listening_to(Service(model_of(), policy=POLICIES["fast"], name="m")) as port:
        answers = ask_in_node(port, texts)
    for answer, expected in zip(answers, Engine(model_of(), POLICIES["fast"])(texts), strict=True):
        assert answer[0]["label"] == expected.label
        assert {row["label"]: row["score"] for row in answer} == pytest.approx(expected.probabilities, abs=1e-6)


def test_under_overload_it_asks_once():
    """503 made it ask 796 times in 1.5 s; 429 must not make it ask more than twice for a call."""
    model, calls = Gated(), 20
    service = Service(model_of(model), settings=ServerSettings(max_queue=6), name="m")  # room for one token

    def open_when_all_others_are_refused():
        wait_until(lambda: requests_by_code(service).get("429", 0) >= calls - 1)
        model.gate.set()

    with listening_to(service) as port:
        opener = threading.Thread(target=open_when_all_others_are_refused)
        opener.start()
        outcomes = ask_in_node(port, [f"text{number}" for number in range(calls)])
        opener.join()
        sent = requests_by_code(service)
    refused = [outcome for outcome in outcomes if "error" in outcome]
    assert len(refused) == calls - 1
    assert sent == {"200": 1, "429": calls - 1}
    assert sum(sent.values()) / calls <= 2
