"""What deploy/ holds fits the server: metrics, options, paths and packages exist."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from tests.bare import SERVER
from tests.report.browser import ROOT
from tests.server.conftest import TEXTS

pytest.importorskip("prometheus_client", reason="the extra server is not installed")
yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

DEPLOY = ROOT / "deploy"
NAMES = re.compile(r"exitpoll_[a-z_]+")


def options():
    """The options of the verb."""
    from inspect import signature

    from exitpoll.cli.verbs.serve import serve

    return {f"--{name.replace('_', '-')}" for name in signature(serve).parameters}


@pytest.fixture
def exposed(serving):
    """The names of all samples that /metrics may show."""
    with serving() as client:
        client.post("/v1/predict", json={"texts": TEXTS})
        families = list(client.service.metrics.registry.collect())
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    return {family.name + suffix for family in families for suffix in suffixes[family.type]}


def test_the_dashboard_names_metrics_that_exist(exposed):
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) > 15
    assert {name for expression in expressions for name in NAMES.findall(expression)} <= exposed
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in board["panels"]]
    assert all(x + width <= 24 for x, _, width, _ in places)
    assert len({place[:2] for place in places}) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


def test_so_do_the_alerts(exposed):
    [group] = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    assert len(group["rules"]) > 5
    for rule in group["rules"]:
        assert set(NAMES.findall(rule["expr"])) <= exposed
        assert rule["annotations"]["summary"]


def test_the_manifest_fits_the_server(exposed, serving):
    parts = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))}
    assert set(parts) == {"Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler"}
    pod = parts["Deployment"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = {argument.split("=")[0]: argument.partition("=")[2] for argument in container["args"][1:]}
    assert set(given) <= options()
    assert pod["terminationGracePeriodSeconds"] > int(given["--drain-delay"]) + int(given["--drain-timeout"])
    [metric] = parts["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in exposed
    with serving(api_key="k") as client:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert client.get(container[probe]["httpGet"]["path"]).status_code == 200


def test_the_image_has_what_serving_needs():
    """Its packages are those that a test runs a server with, in an environment that has no others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    known = {*project["dependencies"], *extras["server"], *extras["onnx"]}
    lines = (DEPLOY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    asked = {line for line in lines if not line.startswith("#")}
    assert asked <= known
    names = {re.match(r"[\w-]+", line)[0] for line in asked}
    assert names <= set(SERVER)
    assert names.isdisjoint({"torch", "transformers"})
    assert set(extras["server"]) <= asked
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^USER 10001$", dockerfile, re.M)
    assert set(re.findall(r'"(--[a-z-]+)"', dockerfile)) <= options()
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.M):
        assert all((ROOT / name).exists() for name in source.split())
