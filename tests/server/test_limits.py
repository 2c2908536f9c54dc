"""Limits and faults: a documented status in the shape of the dialect, and neighbors that are answered as ever."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from exitpoll import Engine, InputError, Policy
from tests.numbers_runtime import Numbers, tokenize
from tests.samples import certified
from tests.server.conftest import POLICIES, TEXTS, counts, model_of, wait_until

pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from exitpoll.engine.arrivals import Step
from exitpoll.server.app import build_app
from exitpoll.server.model_thread import Job, ModelThread
from exitpoll.server.refusals import RefusalError
from exitpoll.server.service import Service
from exitpoll.server.settings import ServerSettings


class Gated(Numbers):
    """Waits in every call until it is let through."""

    def __init__(self):
        super().__init__()
        self.gate, self.calls = threading.Event(), []

    def advance(self, state, layers):
        self.calls.append(len(state))
        assert self.gate.wait(20)
        return state


def token(text):
    return tokenize([text])["input_ids"][0][0]


class Poisoned(Numbers):
    """Fails on one text, and gives NaN for another."""

    def advance(self, state, layers):
        if token("poison") in state:
            raise RuntimeError("division by zero\nin a kernel")
        return state

    def logits_at(self, state, exit_number, rows=None):
        logits = super().logits_at(state, exit_number, rows)
        logits[(state if rows is None else state[rows]) == token("broken")] = np.nan
        return logits


BAD_BODIES = [
    (b"", 400, "not JSON"),
    (b"{", 400, "not JSON"),
    (b"[1]", 422, "must be a JSON object"),
    (b"\xff\xfe", 400, "not JSON"),
    (b'{"texts": [NaN]}', 400, "NaN is not JSON"),
    (b"[" * 100_000, 400, "nested too deeply"),
    (b'{"texts": ' + b"9" * 5000 + b"}", 400, "not JSON"),
    (b'{"texts": "a"}', 422, "texts must be a list"),
    (b'{"texts": ["a"], "text": "a"}', 422, "either texts, a list, or text"),
    (b'{"texts": ["a", ""]}', 422, "text 1 is empty"),
    (b'{"texts": ["a", 5]}', 422, "text 1 is empty, or neither a text nor a pair"),
    (b'{"texts": ["a", ["b", "c"]]}', 422, "some texts are pairs and some are not"),
    (b'{"text": "\\ud800"}', 422, "half of a surrogate pair"),
    (b'{"text": "a", "max_depth": true}', 422, "max_depth must be an integer, not True"),
    (b'{"text": "a", "max_depth": 0}', 422, "max_depth 0 is below the first exit, after layer 1"),
    (b'{"text": "a", "policy": "slow"}', 422, "there is no policy 'slow'; the policies are: default, fast, full"),
    (b'{"text": "a", "top_k": 0}', 422, "top_k must be at least 1"),
    (b'{"text": "a", "top_k": 1.5}', 422, "top_k must be an integer, not 1.5"),
    (b'{"text": "a", "timeout_ms": -1}', 422, "the timeout must be from 0.001 ms"),
    (b'{"text": "a", "timeout_ms": 1' + b"0" * 400 + b"}", 422, "the timeout must be from 0.001 ms"),
    (b'{"text": "a", "\\ud800": 1}', 422, "unknown fields: \\ud800"),
    (b'{"text": "a", "policy": "\\ud800"}', 422, "policy '\\ud800' is not Unicode text"),
    (b'{"text": "a", "stream": true, "n": 1}', 422, "unknown fields: n, stream"),
]


@pytest.mark.parametrize(("body", "status", "message"), BAD_BODIES)
def test_bad_bodies(serving, body, status, message):
    with serving() as client:
        response = client.post("/v1/predict", content=body)
        assert response.status_code == status
        error = response.json()
        assert message in error["error"]
        assert "\n" not in error["error"]
        assert client.post("/v1/predict", json={"text": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "headers", "message"),
    [
        ("/predict", {"inputs": "a", "truncation_direction": "Left"}, {}, "truncation_direction left is not supported"),
        ("/classify", {"input": "a", "request_id": "\ud800"}, {}, "is not Unicode text"),
        ("/classify", {"input": "a", "truncate_prompt_tokens": 1}, {}, "truncate_prompt_tokens 1 is not supported"),
        ("/v2/models/m/infer", {"outputs": [{"name": [1]}]}, {}, "there is no output [1]"),
        ("/v2/models/m/infer", {}, {"Inference-Header-Content-Length": "0" * 5000}, "is not a length within the body"),
    ],
)
def test_bad_fields_of_other_dialects(serving, path, body, headers, message):
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    content = {"inputs": [tensor], **body} if path.startswith("/v2") else body
    with serving() as client:
        response = client.post(path, content=json.dumps(content).encode(), headers=headers)
        assert response.status_code in (400, 422)
        assert message in str(response.json())


@pytest.mark.parametrize(
    "text", ["a\x00b", "\u202eabc", "a" + "\u0301" * 100_000, "word " * 80_000, "🙂", "\u200b"], ids=range(6)
)
def test_odd_texts_are_answered(serving, text):
    with serving() as client:
        rows = client.post("/v1/predict", json={"texts": [text, "a"]}).json()["predictions"]
        alone = client.post("/v1/predict", json={"text": "a"}).json()["predictions"][0]
    assert (rows[1]["label"], rows[1]["depth"]) == (alone["label"], alone["depth"])


def test_sizes(serving):
    with serving(max_body_bytes=2000, max_texts=3, max_characters=100, max_queue=200) as client:
        for path, field in (("/v1/predict", "texts"), ("/predict", "inputs"), ("/classify", "input")):
            for texts, message in (
                (["a" * 5000], "the body is larger than 2000 bytes"),
                (["a"] * 4, "4 texts in a request are more than 3"),
                (["a", "b" * 101], "text 1 has 101 characters, more than 100"),
                (["a " * 40] * 2, "480 layer-tokens of work, more than 200 in all"),
            ):
                response = client.post(path, json={field: texts})
                assert response.status_code == 413
                assert message in response.text
        chunks = (b" " * 1000 for _ in range(5))  # without a length
        assert client.post("/v1/predict", content=chunks).status_code == 413


def test_texts_that_are_too_long_are_cut_or_refused(serving, monkeypatch):
    def cut(texts):
        return {"input_ids": [ids[:12] for ids in tokenize(texts)["input_ids"]]}

    monkeypatch.setattr("tests.server.conftest.tokenize", cut)
    with serving() as client:
        assert client.service.max_tokens == 12
        rows = client.post("/v1/predict", json={"texts": ["a " * 20, "a"]}).json()["predictions"]
        assert [row["truncated"] for row in rows] == [True, False]
        response = client.post("/predict", json={"inputs": ["a", "a " * 20], "truncate": False})
        assert response.status_code == 413
        assert "text 1 reaches the 12 tokens that the model reads" in response.json()["error"]


class SlowReader:
    """A tokenizer that takes its time for long texts."""

    def __init__(self):
        self.gate = threading.Event()

    def __call__(self, texts):
        if any(len(text) > 10_000 for text in texts.first):
            assert self.gate.wait(60)
            return tokenize(["long"])
        return tokenize(texts.first)


def test_texts_that_wait_to_be_tokenized_have_limits_too(serving, monkeypatch):
    monkeypatch.setattr("exitpoll.server.service.MOST_TOKENIZED", 50_000)
    reader, long = SlowReader(), "a" * 20_000
    with serving() as client, ThreadPoolExecutor(4) as pool:
        client.service.model = replace(client.service.model, tokenize=reader)
        waiting = [pool.submit(client.post, "/v1/predict", json={"text": long}) for _ in range(2)]
        wait_until(lambda: client.service._tokenizing > 40_000)
        refused = client.post("/v1/predict", json={"text": long})
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "2")
        late = client.post("/v1/predict", json={"text": "a", "timeout_ms": 50})
        assert late.status_code == 504
        assert counts(client)['{outcome="expired",policy="default"}'] == 1
        reader.gate.set()
        assert [future.result().status_code for future in waiting] == [200, 200]
        wait_until(lambda: not client.service._tokenizing)
        assert client.post("/v1/predict", json={"text": "a"}).status_code == 200


def test_a_policy_that_is_replaced_while_its_texts_are_tokenized_is_let_go(serving, folder, monkeypatch):
    reader = SlowReader()
    with serving() as client, ThreadPoolExecutor(1) as pool:
        client.service.model = replace(client.service.model, tokenize=reader)
        waiting = pool.submit(client.post, "/v1/predict", json={"text": "a" * 20_000, "policy": "fast"})
        wait_until(lambda: client.service._tokenizing)
        Policy("max_prob", 0.7).save(folder / "policies" / "fast.json")
        assert client.post("/v1/policies/reload").status_code == 200
        reader.gate.set()
        assert waiting.result().status_code == 200  # by the policy that it began with
        wait_until(lambda: not client.service.runner.scheduler._walks)


def test_overload_is_refused_at_once_and_nothing_is_lost(serving):
    runtime = Gated()
    with serving(runtime, max_queue=6 * 3 * 4) as client, ThreadPoolExecutor(12) as pool:  # room for four texts
        waiting = [pool.submit(client.post, "/v1/predict", json={"text": "a b c"}) for _ in range(4)]
        wait_until(lambda: client.service.texts_under_way == 4)
        for path, body in (
            ("/v1/predict", {"text": "a b c"}),
            ("/", {"inputs": "a b c"}),
            ("/classify", {"input": "a b c"}),
        ):
            before = time.monotonic()
            refused = client.post(path, json=body)
            assert (refused.status_code, time.monotonic() - before < 5) == (429, True)
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
        assert client.get("/health").status_code == 200
        runtime.gate.set()
        assert [future.result().status_code for future in waiting] == [200] * 4
        outcomes = counts(client)
        assert outcomes['{outcome="answered",policy="default"}'] == 4
        assert outcomes['{outcome="refused",policy="default"}'] == 3


def retry_after(service, work):
    with pytest.raises(RefusalError) as refused:
        service._check_room(work)
    return int(refused.value.headers["Retry-After"])


def test_retry_after_grows_with_the_queue_and_falls_with_the_speed(folder):
    """It is the time in which what is too much is done, at the measured speed."""

    def busy(seconds, done=10_000, queue=100_000):
        settings = ServerSettings(max_queue=100_000)
        service = Service(model_of(), folder=folder, settings=settings, name="m")
        service._count_under_way(queue + done, 2)
        service._on_step(Step(numbers=[0], tokens=1, padded=1), seconds)  # a call, after which a text leaves
        service._count_under_way(-done, -1)
        return service

    by_queue = [retry_after(busy(1.0, queue=queue), 100_000) for queue in (20_000, 60_000, 100_000)]
    assert by_queue == pytest.approx([2, 6, 10], abs=1)  # seconds are rounded
    by_request = [retry_after(busy(1.0), work) for work in (20_000, 60_000, 100_000)]
    assert by_request == by_queue
    by_speed = [retry_after(busy(seconds), 50_000) for seconds in (0.1, 0.6, 1.2, 2.4, 100.0)]
    assert by_speed == pytest.approx([1, 3, 6, 12, 60], abs=1)
    assert sorted(set(by_queue)) == by_queue
    assert sorted(set(by_speed)) == by_speed


def test_every_text_sent_is_accounted_for(serving):
    """Sent = answered + refused + expired + failed, by the statuses that clients saw and by the metrics."""

    class Slow(Poisoned):
        def advance(self, state, layers):
            time.sleep(0.0005 * len(layers))
            return super().advance(state, layers)

    chance = np.random.default_rng(0)
    sizes = chance.integers(1, 6, size=150)
    texts = [
        [str(chance.choice(["poison", *TEXTS], p=[0.05, *[0.95 / 40] * 40])) for _ in range(size)] for size in sizes
    ]
    names = [str(name) for name in chance.choice(["default", "fast", "full"], size=150)]
    times = [int(time) for time in chance.choice([5, 20, 5000], size=150)]

    def send(number):
        body = {"texts": texts[number], "policy": names[number], "timeout_ms": times[number]}
        path = "/v1/predict/stream" if number % 3 == 0 else "/v1/predict"
        return client.post(path, json=body)

    with serving(Slow(), max_queue=2500) as client, ThreadPoolExecutor(12) as pool:
        responses = list(pool.map(send, range(150)))
        outcomes = counts(client)
    totals = {}
    for labels, count in outcomes.items():
        outcome = labels.split('"')[1]
        totals[outcome] = totals.get(outcome, 0) + count
    assert sum(totals.values()) == sizes.sum()
    refused = [int(sizes[number]) for number, response in enumerate(responses) if response.status_code == 429]
    assert totals.get("refused", 0) == sum(refused)
    assert {response.status_code for response in responses} <= {200, 429, 500, 504}
    assert totals["answered"] > 0
    assert totals["failed"] > 0


def test_a_request_that_takes_too_long_is_given_up(serving):
    runtime = Gated()
    with serving(runtime) as client, ThreadPoolExecutor(1) as pool:
        body, headers = {"texts": ["a", "b"], "timeout_ms": 50}, {"X-Request-Timeout-Seconds": "9"}
        late = pool.submit(client.post, "/v1/predict", json=body, headers=headers)
        wait_until(lambda: runtime.calls)
        time.sleep(0.06)
        runtime.gate.set()
        assert late.result().status_code == 504
        assert late.result().json()["error"] == "text 0: the time of the request is over"
        assert counts(client)['{outcome="expired",policy="default"}'] == 2
        wrong = client.post("/predict", json={"inputs": "a"}, headers={"X-Request-Timeout-Seconds": "soon"})
        assert wrong.status_code == 422


def test_a_request_is_given_up_even_while_a_call_hangs(serving):
    runtime = Gated()
    with serving(runtime, timeout=0.05) as client:
        assert client.post("/predict", json={"inputs": ["a", "b"]}).status_code == 504
        stream = client.post("/v1/predict/stream", json={"texts": ["a"]})
        assert stream.text.startswith('event: error\ndata: {"error":"text 0: the time of the request is over"')
        assert counts(client)['{outcome="expired",policy="default"}'] == 3
        runtime.gate.set()


def test_a_defect_fails_what_is_under_way_and_nothing_later(serving, monkeypatch):
    runtime = Gated()
    with serving(runtime) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/v1/predict", json={"text": "a"})
        wait_until(lambda: runtime.calls)
        monkeypatch.setattr(client.service.runner, "on_step", lambda step, seconds: 1 / 0)
        runtime.gate.set()
        assert waiting.result().status_code == 500
        assert waiting.result().json()["error"] == "text 0: the server failed on this text"
        monkeypatch.undo()
        assert client.post("/v1/predict", json={"text": "a"}).status_code == 200


def test_one_text_that_fails_takes_no_other_with_it(serving):
    with serving(Poisoned()) as client, ThreadPoolExecutor(4) as pool:
        bodies = [{"text": text} for text in ("a b", "poison", "broken", *TEXTS)]
        answers = list(pool.map(lambda body: client.post("/v1/predict", json=body), bodies))
        assert [answer.status_code for answer in answers] == [200, 500, 200, *[200] * 40]
        assert answers[1].json()["error"] == "text 0: the model failed on this text: division by zero in a kernel"
        [broken] = answers[2].json()["predictions"]
        assert (broken["label"], broken["error"]) == (None, "the logits of the model are not finite")
        together = client.post("/v1/predict", json={"texts": ["a b", "poison", "c"]}).json()["predictions"]
        assert [row["label"] for row in together] == ["yes", None, "yes"]
        for path, field in (("/predict", "inputs"), ("/", "inputs"), ("/classify", "input")):
            assert client.post(path, json={field: ["a", "broken"]}).status_code == 424
            assert client.post(path, json={field: ["a", "poison"]}).status_code == 500
        assert client.get("/health/live").status_code == 200


def ask(service, receive, path="/v1/predict"):
    """Send one request to a service as an ASGI server would; return the messages of the response."""
    app, sent = build_app(service), []
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}

    async def send(message):
        sent.append(message)

    async def run():
        service.start()
        await app(scope, receive, send)

    asyncio.run(run())
    return sent


def test_a_client_that_has_gone_costs_no_more_than_one_call(folder):
    """It hangs up while its text is in its first call."""
    runtime = Gated()
    service = Service(model_of(runtime), folder=folder)
    body = json.dumps({"text": "a", "policy": "full"}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        while not runtime.calls:
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    ask(service, receive)
    assert (service.texts_under_way, service.work) == (0, 0)
    runtime.gate.set()
    assert isinstance(service.runner, ModelThread)
    scheduler = service.runner.scheduler
    wait_until(lambda: not scheduler.texts)
    service.stop()
    assert len(runtime.calls) == 1
    assert 'exitpoll_texts_total{outcome="cancelled",policy="full"} 1.0' in service.metrics.render().decode()


def test_a_body_that_does_not_come(folder):
    service = Service(model_of(), folder=folder, settings=ServerSettings(body_timeout=0.05))
    messages = [{"type": "http.request", "body": b'{"text": ', "more_body": True}]

    async def receive():
        if messages:
            return messages.pop()
        return await asyncio.sleep(20)

    start, body = ask(service, receive)
    service.stop()
    assert start["status"] == 408
    assert b"did not arrive within 0.05 s" in body["body"]


def test_key(serving):
    with serving(api_key="secret", protect_metrics=True) as client:
        for path in ("/health", "/health/live", "/health/ready", "/ping", "/v2/health/live", "/v2/health/ready"):
            assert client.get(path).status_code == 200
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "secret"},
            {"Authorization": "Basic secret"},
        ):
            for path in ("/v1/predict", "/predict", "/classify", "/v2/models/m/infer", "/v1/policies/reload"):
                response = client.post(path, json={}, headers=headers)
                assert (response.status_code, response.headers["WWW-Authenticate"]) == (401, "Bearer")
            assert client.get("/info", headers=headers).status_code == 401
            assert client.get("/metrics", headers=headers).status_code == 401
        right = {"Authorization": "Bearer secret"}
        assert client.post("/v1/predict", json={"text": "a"}, headers=right).status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200
    with serving(api_key="secret") as client:
        assert client.get("/metrics").status_code == 200


def test_a_hung_call_fails_the_probes(serving):
    runtime = Gated()
    with serving(runtime, stall_timeout=0.05) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/v1/predict", json={"text": "a"})
        wait_until(lambda: client.get("/health/live").status_code == 503)
        assert client.get("/health").status_code == 503
        runtime.gate.set()
        assert waiting.result().status_code == 200
        assert client.get("/health/live").status_code == 200


def test_a_server_that_ends(serving):
    with serving() as client:
        client.service.is_leaving = True
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        assert client.post("/v1/predict", json={"text": "a"}).status_code == 200
        client.service.is_draining = True
        refused = client.post("/v1/predict", json={"text": "a"})
        assert (refused.status_code, refused.headers["Connection"]) == (503, "close")


def test_depths_that_are_no_limit_prepare_nothing_and_keep_the_guarantee(serving):
    with serving() as client:
        for depth in range(6, 30):
            assert client.post("/v1/predict", json={"text": "a", "max_depth": depth}).json()["guarantee"] is not None
        assert len(client.service.runner.scheduler._walks) == 1


def test_metrics_do_not_grow_with_what_clients_send(serving):
    with serving() as client:
        for number in range(30):
            client.post("/v1/predict", json={"text": "a", "policy": f"p{number}"})
            client.post(f"/models/m{number}", json={"inputs": "a"})
            client.get(f"/nothing/{number}")
        client.post("/v1/predict", json={"texts": TEXTS})
        text = client.get("/metrics").text
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(series) < 500
    assert "m7" not in text
    assert 'exitpoll_build_info{model="m",policy="votes (k=0.5)",runtime="numbers"' in text
    layers = sum(row.depth for row in Engine(model_of(), POLICIES["default"])(TEXTS))
    assert f"exitpoll_layers_saved_total {6.0 * 40 - layers}" in text


# ---- policies -------------------------------------------------------------------------------------------------------


def test_policies_are_read_again(serving, folder):
    with serving() as client:

        def depth(name):
            answer = client.post("/v1/predict", json={"text": "a", "policy": name}).json()
            return answer["predictions"][0]["depth"]

        assert depth("fast") == 1
        Policy("votes", 9.0).save(folder / "policies" / "fast.json")
        Policy("max_prob", 0.0).save(folder / "policies" / "new.json")
        assert depth("fast") == 1
        names = [row["name"] for row in client.post("/v1/policies/reload").json()["policies"]]
        assert names == ["default", "full", "fast", "new"]
        assert (depth("fast"), depth("new")) == (6, 1)
        for content, message in (("{", "is not a policy"), (None, "fingerprint other")):
            if content is None:
                Policy("votes", 1, certificate=certified(fingerprint="other")).save(folder / "policies" / "fast.json")
            else:
                (folder / "policies" / "fast.json").write_text(content)
            refused = client.post("/v1/policies/reload")
            assert refused.status_code == 409
            assert "the policies stay as they were" in refused.json()["error"]
            assert message in refused.json()["error"]
            assert depth("fast") == 6
        (folder / "policies" / "fast.json").unlink()
        Policy().save(folder / "policies" / "full.json")
        assert "may not be called 'full'" in client.post("/v1/policies/reload").json()["error"]


def test_reloading_under_load_fails_no_request(serving, folder):
    """Every answer is that of one policy for all its texts: by their depths, which differ between the two."""
    policies = Policy("votes", 0.9, {"k": 0.5}), Policy("votes", 2.2, {"k": 0.5})
    depths = [[row.depth for row in Engine(model_of(), policy)(TEXTS)] for policy in policies]
    assert sum(one != other for one, other in zip(*depths, strict=True)) > 20
    policies[0].save(folder / "policy.json")
    with serving() as client, ThreadPoolExecutor(4) as pool:
        answers = []
        for number in range(12):
            answers += [pool.submit(client.post, "/v1/predict", json={"texts": TEXTS}) for _ in range(4)]
            if number % 3:
                policies[number % 2].save(folder / "policy.json")
            else:
                (folder / "policy.json").write_text("broken")
            assert client.post("/v1/policies/reload").status_code == (200 if number % 3 else 409)
        assert {answer.result().status_code for answer in answers} == {200}
        found = [[row["depth"] for row in answer.result().json()["predictions"]] for answer in answers]
    assert all(row in depths for row in found)
    assert all(row in found for row in depths)


def test_a_faster_policy_under_load(serving, folder):
    Policy("max_prob", 0.0, certificate=POLICIES["default"].certificate).save(folder / "policies" / "faster.json")
    runtime = Gated()
    with serving(runtime, max_queue=100, brownout="faster@0.5") as client, ThreadPoolExecutor(4) as pool:
        first = pool.submit(client.post, "/v1/predict", json={"text": "a " * 10})
        wait_until(lambda: client.service.work == 60)
        second = pool.submit(client.post, "/v1/predict", json={"text": "a"})
        named = pool.submit(client.post, "/v1/predict", json={"text": "a", "policy": "default"})
        wait_until(lambda: client.service.work == 72)
        runtime.gate.set()
        names = [future.result().json()["policy"] for future in (first, second, named)]
        assert names == ["default", "faster", "default"]
        assert client.post("/v1/predict", json={"text": "a"}).json()["policy"] == "default"
    for wrong in ("fast@0.5", "none@0.5"):
        with pytest.raises(InputError, match="is not a policy with a guarantee"), serving(brownout=wrong):
            pass


def test_a_short_time_limit_gains_little_priority():
    """Else others would wait until their own deadlines are near."""
    usual, urgent, late = (
        Job({}, Policy(), print, deadline=deadline, submitted=10.0) for deadline in (70.0, 10.01, None)
    )
    assert (usual.due_time, urgent.due_time, late.due_time) == (10.02, 10.01, 10.02)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_texts": 0}, "max_texts must be above 0"),
        ({"timeout": -1.0}, "timeout -1 must be 0 or more"),
        ({"timeout": float("nan")}, "timeout nan must be 0 or more"),
        ({"audit": 2.0}, "audit 2 is a share of texts"),
        ({"api_key": " "}, "api_key is empty"),
        ({"stall_timeout": 0.0}, "stall_timeout must be above 0"),
        ({"brownout": "fast"}, "brownout 'fast' must be a policy and a share of the queue"),
        ({"brownout": "fast@2"}, "brownout 'fast@2' must be a policy and a share of the queue"),
    ],
)
def test_settings(wrong, message):
    with pytest.raises(InputError, match=message):
        ServerSettings(**wrong)
