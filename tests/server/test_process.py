"""`exitpoll serve` as a process: an export is served without torch, and drained when it is told to end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from exitpoll import Engine, Policy
from tests.bare import SERVER, link_packages
from tests.server.conftest import wait_until
from tests.tiny import toy_texts

pytest.importorskip("uvicorn", reason="the extra server is not installed")
pytestmark = pytest.mark.slow
TEXTS = list(toy_texts(30, 4).first)
SLOW_START = 10.0  # milliseconds
WITHOUT_TORCH = """
import importlib.util, sys
sys.path.insert(0, sys.argv.pop(1))
for name in ("torch", "transformers", "scipy", "sklearn", "huggingface_hub"):
    assert importlib.util.find_spec(name) is None, name
from exitpoll.cli.main import main
main()
"""


@pytest.fixture(scope="module")
def export(tmp_path_factory, exported_folder):
    """An export with two policies: the graph makes the decisions of neither."""
    folder = shutil.copytree(exported_folder, tmp_path_factory.mktemp("served") / "tiny")
    (folder / "policies").mkdir()
    Policy("max_prob", 0.4).save(folder / "policy.json")
    Policy("votes", 1.4, {"k": 0.5}).save(folder / "policies" / "votes.json")
    return folder


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def post(port, path, body):
    request = Request(f"http://127.0.0.1:{port}{path}", data=json.dumps(body).encode(), method="POST")
    with urlopen(request, timeout=120) as response:
        return json.loads(response.read())


def status(port, path):
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as response:
            return response.status
    except HTTPError as error:
        return error.code
    except (URLError, OSError):
        return None


@pytest.fixture
def start(export, tmp_path):
    """A function that starts a server in a process of its own that has no torch, and returns it with its port."""
    started = []

    def call(*options):
        site, port = link_packages(tmp_path, SERVER), free_port()
        words = ["serve", str(export), "--port", str(port), "--threads", "1", *options]
        command = [sys.executable, "-I", "-S", "-c", WITHOUT_TORCH, str(site), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        wait_until(lambda: process.poll() is not None or status(port, "/health") == 200, seconds=30)
        assert process.poll() is None, process.stderr.read()
        return process, port

    yield call
    for process in started:
        process.kill()
        process.communicate()


def test_an_export_is_served_without_torch_and_drained(start, export):
    process, port = start()
    for name, policy in (("default", Policy.load(export / "policy.json")), ("full", Policy())):
        expected = Engine.load(export, policy=policy, threads=1)(TEXTS)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(post, port, "/v1/predict", {"text": text, "policy": name}) for text in TEXTS]
            rows = [future.result()["predictions"][0] for future in asked]
        assert [(row["label"], row["depth"]) for row in rows] == [(row.label, row.depth) for row in expected]
        shares = [row.probability for row in expected]
        assert [row["probability"] for row in rows] == pytest.approx(shares, abs=1e-5)
    # Told to end while requests come in: what was accepted is answered, the rest is refused or not connected.
    outcomes = []

    def ask(text):
        try:
            outcomes.append(len(post(port, "/v1/predict", {"texts": [text] * 20, "policy": "votes"})["predictions"]))
        except HTTPError as error:
            outcomes.append(error.code)
        except (URLError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            outcomes.append("not connected" if isinstance(reason, ConnectionRefusedError) else f"cut: {reason!r}")

    with ThreadPoolExecutor(4) as pool:
        for text in TEXTS:
            pool.submit(ask, text)
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
    assert set(outcomes) <= {20, 503, "not connected"}
    assert process.wait(timeout=60) == 0
    assert 20 in outcomes
    assert process.stderr.read() == ""
    assert process.stdout.read().startswith(f"serving tiny at http://127.0.0.1:{port} (")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_text_alone_in_an_idle_server_starts_at_once(start, workers):
    """Within 1 ms on a machine that does nothing else; here the median of many, in model processes and in a thread."""
    _, port = start("--workers", str(workers), "--max-wait", "10")
    rows = [post(port, "/v1/predict", {"text": text})["predictions"][0] for text in TEXTS * 2]
    assert statistics.median(row["queue_ms"] for row in rows) < SLOW_START


def test_policies_are_read_again_at_a_signal_and_a_second_signal_ends_at_once(start, export):
    process, port = start("--drain-delay", "30")
    Policy("votes", 0.5, {"k": 0.5}).save(export / "policies" / "early.json")
    try:
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: status(port, "/v2/models/tiny:early/ready") == 200)
    finally:
        (export / "policies" / "early.json").unlink()
    assert post(port, "/v1/predict", {"text": "a", "policy": "early"})["predictions"][0]["depth"] == 1
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: status(port, "/health/ready") == 503)
    assert status(port, "/health/live") == 200
    assert len(post(port, "/v1/predict", {"text": "a"})["predictions"]) == 1  # until the delay is over
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def test_it_says_what_is_wrong_in_one_line(run, export, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = run("serve", export, "--port", port)
    assert (code, out) == (2, "")
    assert f"exitpoll: cannot listen at 127.0.0.1, port {port}: Address already in use" in err
    for words, message in (
        ((export, "--port", "70000"), "--port 70000 must be between 0 and 65535"),
        ((export, "--max-texts", "0"), "--max-texts must be above 0"),
        ((tmp_path / "nothing",), "does not exist"),
        ((export, "--policy", tmp_path / "nothing.json"), "there is no policy"),
    ):
        code, _, err = run("serve", *words)
        assert code == 2
        assert message in err
        assert err.splitlines()[-1].startswith("exitpoll: ")


def test_packages_of_the_extra_that_are_missing(run, export, monkeypatch):
    """Without httptools it does not start; without uvloop, which Windows does not have, it says what that costs."""

    def without(missing):
        def find(name, *more):
            return None if name == missing else find_spec(name, *more)

        for module in ("exitpoll.errors", "exitpoll.cli.verbs.serve"):
            monkeypatch.setattr(f"{module}.find_spec", find)

    without("httptools")
    code, _, err = run("serve", export, "--check")
    assert code == 2
    assert err.splitlines()[-1].startswith("exitpoll: serve needs more packages: pip install 'exitpoll[server]'")
    without("uvloop")
    code, out, _ = run("serve", export, "--check")
    assert code == 0
    assert "serve without uvloop takes more time for every request: pip install 'exitpoll[server]'" in out
    monkeypatch.setattr("exitpoll.cli.verbs.serve.sys.platform", "win32")
    assert "uvloop" not in run("serve", export, "--check")[1]


def test_check(run, export):
    code, out, _ = run("serve", export, "--check")
    assert code == 0
    assert "tiny can be served: " in out
    assert "policies: default, full, votes" in out
