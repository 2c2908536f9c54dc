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
from exitpoll.server.openapi import OPERATIONS

CASES = 20  # of each kind for every path; `make soak` makes more
PATHS = sorted({*PREDICTING, STREAM} - {"/models/{name:path}", "/v2/models/{name}/versions/{version}/infer"})


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


def test_every_path_is_documented(serving):
    with serving() as client:
        for path in OPERATIONS:
            assert client.get(path).status_code == 200
