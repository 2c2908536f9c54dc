"""Requests made from the OpenAPI document, valid ones and others: none fails the server or leaves its documentation."""

from __future__ import annotations

from urllib.parse import quote

import pytest

pytest.importorskip("schemathesis", reason="schemathesis is not installed")
pytest.importorskip("prometheus_client", reason="the extra server is not installed")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from exitpoll.server.app import PREDICTING, STREAM

CASES = 20  # of each kind for every path; `make soak` makes more
PATHS = sorted(path.replace(":path", "") for path in (*PREDICTING, STREAM))


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "wrong"])
@pytest.mark.parametrize("path", PATHS)
def test_requests_made_from_the_document(serving, path, mode):
    with serving(training={"pairs": False}) as client:
        document = client.get("/openapi.json").json()
        schema = schemathesis.openapi.from_dict(document)
        operation = schema[path]["POST"]
        documented = {int(code) for code in document["paths"][path]["post"]["responses"]}

        @settings(
            max_examples=CASES,
            deadline=None,
            derandomize=True,  # the soak draws others
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case):
            names = {name: quote(str(value), safe="") for name, value in (case.path_parameters or {}).items()}
            target = path.format(**names)
            response = client.post(target, json=case.body) if not isinstance(case.body, bytes) else None
            if response is None:
                return
            assert response.status_code in documented | {404, 405}
            timeout = case.body.get("timeout_ms") if isinstance(case.body, dict) else None
            assert response.status_code < 500 or (response.status_code == 504 and timeout)
            if mode is GenerationMode.POSITIVE and not path.startswith("/v2"):  # whose shape must fit its data
                assert response.status_code in (200, 404, 504), (case.body, response.text)
            if mode is GenerationMode.NEGATIVE:
                assert response.status_code >= 400, case.body

        ask()
        assert client.get("/health").status_code == 200


def test_the_document_has_the_routes_of_the_app_and_no_others(serving):
    with serving() as client:
        document = client.get("/openapi.json").json()
        described = {(path, method.upper()) for path, methods in document["paths"].items() for method in methods}
        served = {(route.path.replace(":path", ""), method) for route in client.app.routes for method in route.methods}
        assert described == {row for row in served if row[1] != "HEAD"}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                names = [row["name"] for row in operation.get("parameters", [])]
                assert path.count("{") == len(names)
                assert all(f"{{{name}}}" in path for name in names)
