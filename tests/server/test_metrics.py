"""Metrics: at most 500 series, times of streams until their end, and what waits half-way."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from exitpoll import Policy
from exitpoll.decide.shift import Difference
from tests.samples import certified
from tests.server.conftest import POLICIES, TEXTS, counts, model_of, wait_until
from tests.server.test_limits import Gated

pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from starlette.routing import Route

from exitpoll.server.app import build_app
from exitpoll.server.metrics import LEAST_POLICIES, MOST_SERIES, OTHER, OUTCOMES, Metrics
from exitpoll.server.policies import MOST
from exitpoll.server.service import Service

CODES = (200, 400, 401, 404, 405, 408, 409, 413, 422, 424, 429, 499, 500, 503, 504)


def series(text):
    return [line for line in text.splitlines() if not line.startswith("#")]


def routes():
    return [route for route in build_app(Service(model_of())).routes if isinstance(route, Route)]


def full(layers, names):
    """Metrics in which everything has happened: every outcome of every policy, and every status on every route."""
    metrics = Metrics(layers, range(1, layers + 1))
    metrics.name_policies(names)
    metrics.describe("m", "numbers", "votes", "1")
    for name in names:
        for outcome in OUTCOMES:
            metrics.count_texts(name, outcome)
        metrics.count_audit(name, 1)
        metrics.count_dropped(name, 1)
        metrics.show_guarantee(name, 0.01, 0.02, is_broken=name == names[-1])
        rows = [Difference(statistic, 1.0, 2.0, 0.5) for statistic in ("depth", "probability", "length")]
        metrics.show_shift(name, rows, is_shifted=False)
    metrics.count_texts(OTHER, "refused")
    for route in (*[route.path for route in routes()], OTHER):
        for code in CODES:
            metrics.count_request(route, code)
    for depth in range(layers + 1):
        metrics.calls.labels(depth).inc()
    return metrics


@pytest.mark.parametrize("layers", [4, 12, 24])
def test_series_are_bounded_whatever_happens(layers):
    names = [f"policy-{number}" for number in range(MOST)]
    metrics = full(layers, names)
    text = metrics.render({1: 2}).decode()
    assert MOST_SERIES - 40 < len(series(text)) <= MOST_SERIES
    assert metrics.most_policies >= LEAST_POLICIES
    assert 'exitpoll_guarantee_broken{policy="policy-0"} 0.0' in text
    assert f'exitpoll_guarantee_broken{{policy="{OTHER}"}} 1.0' in text  # that of the last is
    assert f'exitpoll_texts_total{{outcome="failed",policy="{OTHER}"}} {MOST - metrics.most_policies}.0' in text
    assert 'exitpoll_pool_texts{layer="1"} 2.0' in text
    # Policies that come later, by reloads, take no more.
    metrics.name_policies([f"later-{number}" for number in range(MOST)])
    metrics.count_texts("later-3", "answered")
    metrics.forget_guarantee(names[-1])
    assert f'exitpoll_guarantee_broken{{policy="{OTHER}"}} 0.0' in metrics.render().decode()
    assert len(series(metrics.render().decode())) <= MOST_SERIES


def test_nothing_is_counted_less_for_want_of_a_label():
    names = [f"policy-{number}" for number in range(MOST)]
    metrics = full(12, names)
    for counter, expected in (
        (metrics.texts, MOST * len(OUTCOMES) + 1),
        (metrics.requests, len(CODES) * (len(routes()) + 1)),
    ):
        [family] = counter.collect()
        assert sum(sample.value for sample in family.samples if sample.name.endswith("_total")) == expected


def test_a_server_with_many_certified_and_audited_policies(serving, folder):
    for number in range(MOST - 3):
        policy = Policy("votes", 1 + number / 40, {"k": 0.5}, certificate=certified(runtime="numbers"))
        policy.save(folder / "policies" / f"p{number:02}.json")
    with serving(audit=1.0) as client:
        for number in range(MOST - 3):
            rows = client.post("/v1/predict", json={"texts": TEXTS[:3], "policy": f"p{number:02}"}).json()
            assert rows["policy"] == f"p{number:02}"  # its own, in the answer
        for path in ("/predict", "/", "/classify", "/v1/classify", "/v1/predict", "/invocations", "/models/m"):
            for body in (b"{", b"[]", b"{}", b'{"inputs": []}', b'{"input": "a"}'):
                client.post(path, content=body)
                client.put(path)
        wait_until(lambda: not client.service.audits.waiting)
        text = client.get("/metrics").text
        answered = counts(client)
    assert len(series(text)) <= MOST_SERIES
    assert sum(count for labels, count in answered.items() if "answered" in labels) == 3 * (MOST - 3) + 2
    assert answered['{outcome="answered",policy="other"}'] > 3
    assert "_created" not in text


class Slow(Gated):
    """Takes its time for every layer."""

    def advance(self, state, layers):
        time.sleep(0.01)
        return state


def test_a_stream_is_timed_to_its_end_and_says_by_what_it_answers(serving):
    with serving(Slow()) as client:
        response = client.post("/v1/predict/stream", json={"texts": ["a", "b c"], "policy": "full"})
        [seconds] = [
            float(line.split()[-1])
            for line in client.get("/metrics").text.splitlines()
            if line.startswith("exitpoll_request_seconds_sum")
        ]
        assert seconds >= 0.01
        assert response.headers["x-exit-policy"] == "full"
        assert "x-exit-guarantee" not in response.headers
        assert response.headers["x-compute-tokens"] == "3"
        assert response.headers["x-compute-characters"] == "4"
        assert response.headers["server-timing"].startswith("tokenize;dur=")
        assert "x-tokenization-time" in response.headers
        response = client.post("/v1/predict/stream", json={"texts": ["a"]})
        assert response.headers["x-exit-guarantee"] == client.service.policies["default"].guarantee


def test_texts_that_wait_half_way_are_shown_by_layer(serving):
    runtime = Gated()
    with serving(runtime) as client, ThreadPoolExecutor(2) as pool:
        names = 'exitpoll_pool_texts{layer="'
        shown = [line for line in client.get("/metrics").text.splitlines() if line.startswith(names)]
        assert shown == [f'{names}{layer}"}} 0.0' for layer in (0, 1, 2, 4, 5)]
        waiting = [pool.submit(client.post, "/v1/predict", json={"text": "a", "policy": name}) for name in POLICIES]
        wait_until(lambda: runtime.calls)
        runtime.gate.set()
        assert {future.result().status_code for future in waiting} == {200}
        assert client.service.runner.pool_texts == {}
        scheduler = client.service.runner.scheduler
    scheduler.submit({"input_ids": [[1, 1], [2, 2]]}, policy=Policy("votes", 9.0))
    scheduler.step()
    assert scheduler.pool_texts() == {1: 2}


def test_paths_that_are_not_served_have_an_id_too(serving):
    with serving() as client:
        for method, path in (("get", "/nothing"), ("put", "/predict")):
            response = getattr(client, method)(path, headers={"X-Request-Id": "mine"})
            assert response.status_code in (404, 405)
            assert response.headers["x-request-id"] == "mine"
