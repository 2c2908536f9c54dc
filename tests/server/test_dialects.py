"""Every dialect answers as the engine does, text by text, in the shape that its clients read."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from exitpoll import Engine, Policy
from exitpoll.server.request_schemas import schema_of
from tests.numbers_runtime import Numbers
from tests.server.conftest import POLICIES, TEXTS, counts, model_of


def expected(policy="default", texts=TEXTS):
    return Engine(model_of(), POLICIES[policy])(texts)


@pytest.mark.parametrize("policy", POLICIES)
def test_native(serving, policy):
    with serving() as client:
        answer = client.post("/v1/predict", json={"texts": TEXTS, "policy": policy}).json()
    found = [(row["label"], row["depth"], row["tokens"]) for row in answer["predictions"]]
    assert found == [(row.label, row.depth, row.tokens) for row in expected(policy)]
    shares = [row["probability"] for row in answer["predictions"]]
    assert shares == pytest.approx([row.probability for row in expected(policy)], abs=1e-6)
    assert (answer["model"], answer["runtime"], answer["policy"]) == ("m", "numbers", policy)
    guarantee = "answers differ from the full model's on at most 1 % of texts, with 95 % confidence"
    assert answer["guarantee"] == (guarantee if policy == "default" else None)
    depths = sum(row.depth for row in expected(policy))
    tokens = sum(row.tokens for row in expected(policy))
    assert answer["usage"] == {"texts": 40, "tokens": tokens, "layers_run": depths, "layers_full": 240}


def test_many_at_once_with_mixed_policies(serving):
    with serving() as client, ThreadPoolExecutor(8) as pool:
        names = [list(POLICIES)[number % 3] for number in range(120)]
        bodies = [{"text": TEXTS[number % 40], "policy": name} for number, name in enumerate(names)]
        answers = list(pool.map(lambda body: client.post("/v1/predict", json=body).json(), bodies))
        for number, (name, answer) in enumerate(zip(names, answers, strict=True)):
            [row] = answer["predictions"]
            prediction = expected(name, [TEXTS[number % 40]])[0]
            assert (row["label"], row["depth"]) == (prediction.label, prediction.depth)
        answered = {f'{{outcome="answered",policy="{name}"}}': 40.0 for name in POLICIES}
        assert counts(client) == answered


def test_explained(serving):
    with serving() as client:
        body = {"text": "a text", "explain": True, "top_k": 1, "max_depth": 2}
        answer = client.post("/v1/predict", json=body).json()
        full = client.post("/v1/predict", json={**body, "policy": "full", "max_depth": None}).json()
    [row] = answer["predictions"]
    assert answer["guarantee"] is None  # it is not for another depth
    assert [vote["layer"] for vote in row["votes"]] == [1, 2]
    assert [vote["exits"] for vote in row["votes"]] == [False, True]
    assert [vote["threshold"] for vote in row["votes"]] == [1.6, 1.6]
    assert row["votes"][1]["score"] == pytest.approx(2 / 2**0.5)
    assert row["votes"][1]["probability"] == pytest.approx(row["probability"], abs=1e-6)
    assert row["scores"] == [{"label": row["label"], "score": pytest.approx(row["probability"], abs=1e-6)}]
    [vote] = full["predictions"][0]["votes"]
    assert (vote["layer"], vote["threshold"]) == (6, None)


@pytest.mark.parametrize("kind", ["text/event-stream", "application/x-ndjson"])
def test_stream(serving, kind):
    with serving() as client:
        response = client.post("/v1/predict/stream", json={"texts": TEXTS}, headers={"Accept": kind})
    assert response.headers["content-type"].startswith(kind)
    if kind == "text/event-stream":
        events = [block.split("\n") for block in response.text.strip().split("\n\n")]
        assert [event[0] for event in events] == ["event: prediction"] * 40 + ["event: done"]
        rows = [json.loads(event[1].removeprefix("data: ")) for event in events]
    else:
        rows = [json.loads(line) for line in response.text.splitlines()]
    assert rows[-1]["usage"]["texts"] == 40
    assert {row["index"]: row["depth"] for row in rows[:-1]} == {
        number: row.depth for number, row in enumerate(expected())
    }


def test_text_embeddings_inference(serving):
    probabilities = [row.probabilities for row in expected(texts=["a", "b c"])]
    rows = [
        [{"score": pytest.approx(score, abs=1e-6), "label": label} for label, score in shares.items()]
        for shares in probabilities
    ]
    assert all(shares["yes"] > shares["no"] for shares in probabilities)
    with serving() as client:
        for path in ("/predict", "/invocations"):
            assert client.post(path, json={"inputs": "a"}).json() == rows[0]
            assert client.post(path, json={"inputs": {"text": "a"}, "truncate": True}).json() == rows[0]
            for batch in (["a", "b c"], [["a"], ["b c"]], [{"text": "a"}, {"text": "b c"}]):
                assert client.post(path, json={"inputs": batch}).json() == rows
        raw = client.post("/predict", json={"inputs": "a", "raw_scores": True}).json()
        assert [row["score"] for row in raw] == pytest.approx(expected(texts=["a"])[0].logits.tolist())
        assert client.get("/ping").status_code == client.get("/health").status_code == 200
        info = client.get("/info").json()
    assert info["model_type"] == {"classifier": {"id2label": {"0": "yes", "1": "no"}, "label2id": {"yes": 0, "no": 1}}}
    assert (info["max_client_batch_size"], info["exit_layers"]) == (256, [1, 2, 4, 5, 6])


def test_a_list_of_two_is_a_pair_where_the_model_reads_pairs(serving):
    with serving(training={"pairs": True}) as client:
        flat = client.post("/predict", json={"inputs": ["a", "b c"]}).json()
        assert [set(row) for row in flat] == [{"score", "label"}] * 2
        for batch in ([["a", "b c"]], [{"text": "a", "text_pair": "b c"}]):
            assert client.post("/predict", json={"inputs": batch}).json() == [flat]
        refused = client.post("/predict", json={"inputs": ["a", "b", "c"]})
        assert refused.status_code == 422
        assert "text 0: a single text, where the model was trained on pairs" in refused.json()["error"]


def test_inference_clients_get_lists_in_a_list(serving):
    with serving() as client:
        flat = client.post("/predict", json={"inputs": "a"}).json()
        assert client.post("/", json={"inputs": "a", "options": {}}).json() == [flat]
        assert client.post("/models/m", json={"inputs": "a"}).json() == [flat]
        assert client.post("/", json={"inputs": "a", "parameters": {"top_k": 1}}).json() == [flat[:1]]
        sigmoid = client.post("/", json={"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}}).json()
        logits = expected(texts=["a"])[0].logits
        assert sigmoid[0][0]["score"] == pytest.approx(float(1 / (1 + np.exp(-logits[0]))))
        wrong = client.post("/", json={"inputs": "a", "parameters": {"function_to_apply": "tanh"}})
        assert wrong.status_code == 422
        unknown = client.post("/models/other", json={"inputs": "a"})
        assert (unknown.status_code, unknown.json()["error_type"]) == (404, "NotFound")


def test_vllm(serving):
    with serving() as client:
        for path in ("/classify", "/v1/classify"):
            for model, policy in (("m", "default"), ("m:fast", "fast")):
                answer = client.post(path, json={"model": model, "input": TEXTS, "user": "x"}).json()
                assert answer["model"] == model
                predictions = expected(policy)
                for row, prediction in zip(answer["data"], predictions, strict=True):
                    assert (row["label"], row["depth"]) == (prediction.label, prediction.depth)
                    assert row["probs"] == pytest.approx(list(prediction.probabilities.values()), abs=1e-6)
                assert answer["usage"]["prompt_tokens"] == sum(row.tokens for row in predictions)
        refused = client.post("/classify", json={"input": [1, 2, 3]})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == "input must be texts only: token ids are not read"
        missing = client.post("/classify", json={"model": "m:slow", "input": "a"})
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NotFoundError")
        listed = [row["id"] for row in client.get("/v1/models").json()["data"]]
        assert listed == ["m", "m:default", "m:full", "m:fast"]


def test_open_inference_as_json(serving):
    tensor = {"name": "text", "datatype": "BYTES", "shape": [2, 1], "data": ["a", "b c"]}
    with serving() as client:
        body = {"id": "7", "inputs": [tensor], "parameters": {"policy": "fast"}}
        answer = client.post("/v2/models/m/versions/1/infer", json=body).json()
        outputs = {output["name"]: output for output in answer["outputs"]}
        predictions = expected("fast", ["a", "b c"])
        assert (answer["id"], answer["parameters"]["policy"]) == ("7", "fast")
        assert outputs["label"]["data"] == [row.label for row in predictions]
        assert outputs["depth"]["data"] == [row.depth for row in predictions]
        assert outputs["probabilities"]["shape"] == [2, 2]
        one = client.post("/v2/models/m/infer", json={"inputs": [tensor], "outputs": [{"name": "depth"}]}).json()
        assert [output["name"] for output in one["outputs"]] == ["depth"]
        about = client.get("/v2/models/m").json()
        assert about["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2"):
            assert client.get(path).status_code == 200
        assert client.get("/v2/models/other").json() == {
            "error": "there is no model 'other'; GET /v1/models lists those that are served"
        }


def test_open_inference_as_bytes(serving):
    encoded = b"".join(struct.pack("<I", len(text)) + text for text in (b"a", "b ü".encode()))
    tensor = {
        "name": "text",
        "datatype": "BYTES",
        "shape": [2, 1],
        "parameters": {"binary_data_size": len(encoded)},
    }
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    with serving() as client:
        headers = {"Inference-Header-Content-Length": str(len(header))}
        response = client.post("/v2/models/m/infer", content=header + encoded, headers=headers)
        length = int(response.headers["Inference-Header-Content-Length"])
        about, rest = json.loads(response.content[:length]), response.content[length:]
        sizes = [output["parameters"]["binary_data_size"] for output in about["outputs"]]
        assert sum(sizes) == len(rest)
        predictions = expected(texts=["a", "b ü"])
        labels = b"".join(struct.pack("<I", len(row.label)) + row.label.encode() for row in predictions)
        assert rest[: sizes[0]] == labels
        depths = np.frombuffer(rest[sizes[0] + sizes[1] :], dtype="<i4")
        assert depths.tolist() == [row.depth for row in predictions]
        for damage in (encoded[:-1], encoded + b"\x09\x00", struct.pack("<I", 2) + b"\xff\xfe"):
            tensor["parameters"] = {"binary_data_size": len(damage)}
            header = json.dumps({"inputs": [tensor]}).encode()
            headers = {"Inference-Header-Content-Length": str(len(header))}
            refused = client.post("/v2/models/m/infer", content=header + damage, headers=headers)
            assert refused.status_code in (400, 422)
            assert set(refused.json()) == {"error"}


TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": []}, "there must be one input, text, not 0"),
        ({"inputs": [5]}, "an input must be an object"),
        ({"inputs": [{**TENSOR, "name": "texts"}]}, "the input must be text, of BYTES"),
        ({"inputs": [{**TENSOR, "datatype": "FP32"}]}, "the input must be text, of BYTES"),
        ({"inputs": [{**TENSOR, "shape": [-1]}]}, "must be a list of sizes"),
        ({"inputs": [{**TENSOR, "shape": [1, 3]}]}, "must be [texts], [texts, 1], or [texts, 2] for pairs"),
        ({"inputs": [{**TENSOR, "shape": [2]}]}, "the input has 1 elements, which its shape [2] does not"),
        ({"inputs": [{**TENSOR, "data": None}]}, "neither data nor binary_data_size"),
        ({"inputs": [{**TENSOR, "parameters": {"binary_data_size": 5}}]}, "is not the 0 bytes behind the JSON"),
        ({"outputs": [{"name": "logits"}]}, "there is no output 'logits'; the outputs are: depth, label"),
        ({"parameters": {"max_depth": "all"}}, "parameters.max_depth must be an integer"),
        ({"parameters": {"policy": "slow"}}, "there is no policy 'slow'"),
    ],
)
def test_tensors_that_are_refused(serving, change, message):
    with serving() as client:
        refused = client.post("/v2/models/m/infer", json={"inputs": [TENSOR], **change})
        assert refused.status_code in (400, 422)
        assert message in refused.json()["error"]
        headers = {"Inference-Header-Content-Length": "99999"}
        assert client.post("/v2/models/m/infer", json={"inputs": [TENSOR]}, headers=headers).status_code == 400


@pytest.mark.parametrize("inputs", [None, 5, {"text_pair": "a"}, {"text": "a", "more": "b"}, [5], [["a", "b", "c"]]])
def test_inputs_that_are_refused(serving, inputs):
    with serving() as client:
        for path in ("/predict", "/"):
            refused = client.post(path, json={"inputs": inputs})
            assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")


def test_every_example_of_the_document_is_answered(serving):
    with serving() as client:
        document = client.get("/openapi.json").json()
        for path, operations in document["paths"].items():
            target = path.replace("{name}", "m").replace("{version}", "1")
            for method, operation in operations.items():
                content = operation.get("requestBody", {}).get("content", {}).get("application/json")
                body = None if content is None else content["schema"]["example"]
                assert client.request(method, target, json=body).status_code == 200, path
        unknown = client.get("/nothing")
        assert unknown.status_code == 404
        assert client.get("/v1/predict").status_code == 405
        assert client.options("/").headers["Allow"] == "GET, HEAD, POST"  # of the page and of the clients


def test_an_empty_name_is_no_policy(serving):
    with serving() as client:
        answer = client.post("/v1/predict", json={"text": "a", "policy": ""})
        assert answer.status_code == 422
        assert "there is no policy ''" in answer.json()["error"]
        assert client.post("/classify", json={"input": "a", "model": "m:"}).status_code == 404
        assert client.post("/models/m:", json={"inputs": "a"}).status_code == 404


def test_pairs_are_described_where_the_model_may_take_them(serving, monkeypatch):
    with serving() as client:
        for known, forms in ((None, 2), (False, 1)):
            training = {} if known is None else {"pairs": known}
            monkeypatch.setattr(client.service, "model", replace(client.service.model, training=training))
            text = schema_of(client.service, "/v1/predict")["properties"]["text"]["anyOf"][0]
            assert len(text.get("anyOf", [text])) == forms
            pair = client.post("/v1/predict", json={"text": ["a", "b"]})
            assert pair.status_code == (200 if forms == 2 else 422)


def test_headers(serving):
    with serving() as client:
        response = client.post("/predict", json={"inputs": "a b"}, headers={"X-Request-Id": "mine"})
        made = client.post("/predict", json={"inputs": "a b"}, headers={"X-Request-Id": "two words"})
    headers = response.headers
    assert headers["x-request-id"] == "mine"
    assert headers["x-exit-policy"] == "default"
    assert headers["x-exit-guarantee"].startswith("answers differ from the full model's on at most 1 % of texts")
    assert len(made.headers["x-request-id"]) == 32
    assert headers["x-exit-depth"] == str(expected(texts=["a b"])[0].depth)
    assert (headers["x-compute-tokens"], headers["x-compute-characters"]) == ("2", "3")
    assert {part.split(";")[0].strip() for part in headers["server-timing"].split(",")} == {
        "tokenize",
        "queue",
        "model",
    }
    assert {"x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"} <= set(headers)


class Values(Numbers):
    """A regression of the same numbers."""

    problem_type, classes = "regression", 1

    def logits_at(self, state, exit_number, rows=None):
        return super().logits_at(state, exit_number, rows)[:, :1]


class Labels(Numbers):
    """Both labels may apply."""

    problem_type = "multi_label_classification"

    def logits_at(self, state, exit_number, rows=None):
        return super().logits_at(state, exit_number, rows) + np.array([-1.0, 2.0], dtype=np.float32)


def test_values(serving, folder):
    policy = Policy("patience", 1, {"within": 2.0}, problem_type="regression")
    policy.save(folder / "policy.json")
    (folder / "policies" / "fast.json").unlink()
    predictions = Engine(model_of(Values()), policy)(TEXTS)
    assert len({row.depth for row in predictions}) > 1
    values, depths = [row.label for row in predictions], [row.depth for row in predictions]
    tensor = {"name": "text", "datatype": "BYTES", "shape": [40], "data": TEXTS}
    with serving(Values()) as client:
        rows = client.post("/v1/predict", json={"texts": TEXTS, "explain": True, "top_k": 2}).json()["predictions"]
        assert [row["label"] for row in rows] == pytest.approx(values)
        assert [row["depth"] for row in rows] == depths
        assert {row["probability"] for row in rows} == {None}
        assert [row["votes"][-1]["label"] for row in rows] == pytest.approx(values)
        rows = client.post("/predict", json={"inputs": TEXTS}).json()
        assert [row[0]["score"] for row in rows] == pytest.approx(values)
        rows = client.post("/classify", json={"input": TEXTS}).json()["data"]
        assert [row["probs"] for row in rows] == [pytest.approx([value]) for value in values]
        outputs = client.post("/v2/models/m/infer", json={"inputs": [tensor]}).json()["outputs"]
        assert [output["name"] for output in outputs] == ["value", "depth"]
        assert outputs[0]["data"] == pytest.approx(values)


def test_several_labels(serving, folder):
    policy = Policy("max_prob", 0.8, problem_type="multi_label_classification")
    policy.save(folder / "policy.json")
    (folder / "policies" / "fast.json").unlink()
    predictions = Engine(model_of(Labels()), policy)(TEXTS)
    labels, depths = [list(row.label) for row in predictions], [row.depth for row in predictions]
    assert {len(row) for row in labels} >= {1, 2}
    tensor = {"name": "text", "datatype": "BYTES", "shape": [40], "data": TEXTS}
    with serving(Labels()) as client:
        rows = client.post("/v1/predict", json={"texts": TEXTS, "explain": True, "top_k": 1}).json()["predictions"]
        assert [row["label"] for row in rows] == labels
        assert [row["depth"] for row in rows] == depths
        assert [row["votes"][-1]["label"] for row in rows] == labels
        assert rows[0]["probability"] == pytest.approx(predictions[0].probability)
        rows = client.post("/predict", json={"inputs": TEXTS}).json()
        assert {row["label"]: row["score"] for row in rows[0]} == pytest.approx(predictions[0].probability)
        assert [row["label"] for row in client.post("/classify", json={"input": TEXTS}).json()["data"]] == labels
        outputs = client.post("/v2/models/m/infer", json={"inputs": [tensor]}).json()["outputs"]
        assert [json.loads(label) for label in outputs[0]["data"]] == labels
