"""The page at / answers texts and shows policies and what the server does; it asks nobody else, and fits a phone.

These tests need a Chromium, and that of accessibility axe-core, as those of the report do.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from exitpoll import Engine, Guarantee, Policy
from tests.report.browser import AXE, CHROMIUM, start
from tests.samples import certified
from tests.server.conftest import listening_to, model_of

pytest.importorskip("uvicorn", reason="the extra server is not installed")
pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from exitpoll.server.pages import FILES, HEADERS
from exitpoll.server.service import Service
from exitpoll.server.settings import ServerSettings

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
needs_axe = pytest.mark.skipif(not AXE.is_file(), reason="there is no axe-core")
LOOKS = {"wide": {}, "phone": {"width": 375, "height": 800}, "dark": {"dark": True}}
TEXTS = ["a b", "<b>c</b> & d", "e f g h", "a text of many words " * 8]
DEFAULT = Policy(
    "votes",
    1.6,
    {"k": 0.5},
    certificate=replace(certified(Guarantee(at_most=0.4), runtime="numbers"), measured=0.1, bound=0.15),
)
FAST = Policy("max_prob", 0.6)


def service_in(folder, **settings):
    """A service with a policy that has a guarantee, and one that has none."""
    (folder / "policies").mkdir()
    DEFAULT.save(folder / "policy.json")
    FAST.save(folder / "policies" / "fast.json")
    return Service(model_of(), folder=folder, settings=ServerSettings(**settings), name="numbers")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with listening_to(service_in(tmp_path_factory.mktemp("model"), audit=1.0)) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with start(tmp_path_factory.mktemp("profile")) as started:
        yield started


def until(browser, condition):
    """Wait until something holds in the page."""
    browser.run(
        f"""new Promise((done, fail) => {{
            const before = performance.now();
            const isLate = () => performance.now() - before > 10000;
            const look = () => ({condition}) ? done() : isLate() ? fail("late") : setTimeout(look, 20);
            look();
        }})"""
    )


def ask(browser, texts=TEXTS):
    """Type texts, classify them, and wait until all have left."""
    until(browser, "!document.getElementById('run').disabled")
    browser.run(f"document.getElementById('texts').value = {json.dumps(chr(10).join(texts))}")
    browser.run("document.getElementById('run').click()")
    until(browser, f"document.querySelectorAll('.climb .answer b').length === {len(texts)}")
    until(browser, "!document.getElementById('run').disabled")


def shown(browser):
    """Label, layers with a vote, and the layer after which each text left, as the page shows them."""
    return browser.run(
        """[...document.querySelectorAll('.climb')].map((climb) => [
            climb.querySelector('.text').textContent,
            climb.querySelector('.answer b').textContent,
            climb.querySelectorAll('.exit.shown').length,
            Number(climb.querySelector('.exit.left .layer').textContent)])"""
    )


def expected(policy):
    model = model_of()
    layers = policy.asked(model.runtime.exit_layers)
    found = zip(TEXTS, Engine(model, policy)(TEXTS), strict=True)
    return [[text.strip(), row.label, layers.index(row.depth) + 1, row.depth] for text, row in found]


@needs_chromium
@pytest.mark.parametrize("look", LOOKS)
def test_texts_are_answered(browser, address, look):
    browser.open(f"{address}/", **LOOKS[look])
    ask(browser)
    assert shown(browser) == expected(DEFAULT)
    assert browser.run("document.getElementById('note').textContent").startswith("4 texts by policy default: ")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.console == []
    assert {request.removeprefix(address) for request in browser.requests} <= {
        *("/", "/info", "/v1/policies", "/v1/status", "/v1/predict/stream"),
        *FILES,
    }


@needs_chromium
@needs_axe
@pytest.mark.parametrize("look", LOOKS)
def test_the_page_is_accessible(browser, address, look):
    browser.open(f"{address}/", **LOOKS[look])
    ask(browser)
    assert shown(browser) == expected(DEFAULT)
    browser.run("document.querySelector('details').open = true")
    assert violations(browser) == []


def violations(browser):
    browser.run(AXE.read_text(encoding="utf-8"))
    found = browser.run("axe.run().then((result) => JSON.stringify(result.violations))")
    return [
        (rule["id"], node["html"][:200], node["failureSummary"]) for rule in json.loads(found) for node in rule["nodes"]
    ]


@needs_chromium
def test_another_policy_by_keyboard(browser, address):
    browser.open(f"{address}/")
    until(browser, "document.querySelectorAll('#policies input').length === 3")
    browser.run("document.querySelector('#policies input:checked').focus()")
    browser.press("ArrowDown")
    assert browser.run("document.querySelector('#policies input:checked').value") == "full"
    assert (
        browser.run("document.querySelector('.dot.chosen title').textContent")
        == "full: 1.00\u00a0×, differs on 0\u00a0%"
    )
    browser.press("ArrowDown")
    ask(browser)
    assert shown(browser) == expected(FAST)
    assert "without a guarantee" in browser.run("document.getElementById('note').textContent")


@needs_chromium
def test_what_the_server_does_is_shown(browser, address):
    browser.open(f"{address}/")
    ask(browser)
    until(browser, "/^[4-9]|\\d\\d/.test(document.getElementById('answered').textContent)")
    until(browser, "/of \\d+ audited/.test(document.getElementById('guarantee').textContent)")
    assert browser.run("document.querySelectorAll('#depths .bar').length") == 5
    assert browser.run("document.querySelectorAll('#curve .limit').length") == 1


@needs_chromium
def test_a_server_with_a_key(browser, tmp_path):
    with listening_to(service_in(tmp_path, api_key="secret")) as port:
        browser.open(f"http://127.0.0.1:{port}/")
        until(browser, "!document.getElementById('login').hidden")
        for key, words in (("wrong", "The key is wrong."), ("secret", "6 layers")):
            browser.run(f"document.getElementById('key').value = '{key}'")
            browser.run("document.querySelector('#login button').click()")
            until(browser, f"document.getElementById('about').textContent.startsWith('{words}')")
        ask(browser)
        assert shown(browser) == expected(DEFAULT)
        assert {line for line in browser.console if "401" not in line} == set()


@needs_chromium
@pytest.mark.parametrize("look", LOOKS)
def test_the_documentation(browser, address, look):
    browser.open(f"{address}/docs", **LOOKS[look])
    assert browser.console == []
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


@needs_chromium
@needs_axe
@pytest.mark.parametrize("look", LOOKS)
def test_the_documentation_is_accessible(browser, address, look):
    browser.open(f"{address}/docs", **LOOKS[look])
    assert violations(browser) == []


def test_pages_are_small_and_ask_nobody_else(serving):
    with serving(api_key="secret") as client:
        size = 0
        for path in (*FILES, "/docs"):
            response = client.get(path)
            assert response.status_code == 200
            assert response.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
            assert "://" not in response.text.replace("http://www.w3.org/2000/svg", "")
            size += len(response.content)
        assert size < 150_000
        assert client.get("/v1/status").status_code == 401
        docs = client.get("/docs").text
        key = {"Authorization": "Bearer secret"}
        described = client.get("/openapi.json", headers=key).json()
        assert all(f"<code>{path}</code>" in docs for path in described["paths"])
        assert client.get("/v1/status", headers=key).json()["default"] == "default"
        assert client.post("/", headers=key, json={"inputs": "a b"}).json()[0][0]["label"] in ("yes", "no")
