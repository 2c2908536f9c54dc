"""Model processes: answers as in one process, and no death or hung call loses a text but the one that caused it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from exitpoll import Engine, InputError, Policy
from tests.samples import certified
from tests.server.conftest import POLICIES, TEXTS, counts, model_of, wait_until
from tests.server.faulty import MAIN, load, token

pytest.importorskip("prometheus_client", reason="the extra server is not installed")

from starlette.testclient import TestClient

from exitpoll.engine.arrivals import Step
from exitpoll.engine.engine import Prediction
from exitpoll.engine.runtime import LoadedModel
from exitpoll.server.app import build_app
from exitpoll.server.board import MOST, Board, open_board
from exitpoll.server.frames import (
    Kind,
    SentText,
    frame,
    pack_call,
    pack_result,
    pack_text,
    read_call,
    read_result,
    read_text,
    take_frames,
)
from exitpoll.server.model_thread import Result
from exitpoll.server.service import Service
from exitpoll.server.settings import ServerSettings
from exitpoll.server.worker_pool import MOST_KILLS, WorkerPool, default_workers, without_weights

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there are no model processes on Windows")


class ServedClient(TestClient):
    """A client that knows what it asks."""

    service: Service
    runner: WorkerPool


@pytest.fixture
def processes(folder, monkeypatch):
    """A function that serves a faulty model in processes, with a client to ask."""
    monkeypatch.setattr("exitpoll.server.worker_process.MAIN", MAIN)

    @contextmanager
    def serve(workers=2, **settings):
        chosen = ServerSettings(workers=workers, **settings)
        service = Service(load(folder), folder=folder, settings=chosen, name="m")
        runner = service.runner
        assert isinstance(runner, WorkerPool)
        with ServedClient(build_app(service), raise_server_exceptions=False) as client:
            client.service, client.runner = service, runner
            wait_until(lambda: sum(process.is_ready for process in runner.processes) == workers)
            started = [process.process for process in runner.processes]
            yield client
        assert (service.work, service.texts_under_way) == (0, 0)
        assert (runner._jobs, runner.held) == ({}, {})
        assert all(process.poll() is not None for process in started)

    return serve


def post(client, *texts, **fields):
    return client.post("/v1/predict", json={"texts": list(texts), **fields})


def restarts(client):
    return next(
        float(line.split()[-1])
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("exitpoll_worker_restarts_total ")
    )


def calls_with(folder, text):
    """How many calls held a text."""
    return sum(str(token(text)) in line.split()[1:] for line in (folder / "calls.txt").read_text().splitlines())


def kill_one(runner):
    """Kill a model process that is ready, as another program would."""
    wait_until(lambda: runner.is_up)
    next(process for process in runner.processes if process.is_ready).process.kill()


# ---- answers --------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_engine(processes, folder):
    """Five hundred texts, in many requests at once, with mixed policies and lengths."""
    engines = {name: Engine(model_of(), policy) for name, policy in POLICIES.items()}
    chance = np.random.default_rng(0)
    asked = [
        (
            [TEXTS[number] for number in chance.integers(40, size=chance.integers(1, 16))],
            str(chance.choice([*POLICIES])),
        )
        for _ in range(70)
    ]
    with processes() as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda ask: post(client, *ask[0], policy=ask[1]).json(), asked))
        used = {line.split()[0] for line in (folder / "calls.txt").read_text().splitlines()}
        assert counts(client, "exitpoll_calls_total")
    assert sum(len(texts) for texts, _ in asked) > 500
    for (texts, name), answer in zip(asked, answers, strict=True):
        rows = [(row["label"], row["depth"], row["probability"]) for row in answer["predictions"]]
        assert rows == [(row.label, row.depth, row.probability) for row in engines[name](texts)]
    assert len(used) == 2  # both processes had texts


def test_explanations_depths_and_time_limits_are_as_in_one_process(processes, serving):
    bodies = [
        {"texts": TEXTS[:5], "explain": True, "top_k": 2},
        {"texts": TEXTS[:5], "max_depth": 2},
        {"texts": TEXTS[:5], "policy": "fast", "max_depth": 4, "explain": True},
    ]

    def answers(client):
        rows = [client.post("/v1/predict", json=body).json() for body in bodies]
        for row in (row for answer in rows for row in answer["predictions"]):
            row.update(queue_ms=0, model_ms=0)
        return rows

    with serving() as client:
        expected = answers(client)
    with processes() as client:
        assert answers(client) == expected


def test_policies_are_read_again(processes, folder):
    with processes() as client:
        assert post(client, "a", policy="fast").json()["predictions"][0]["depth"] == 1
        Policy("votes", 9.0).save(folder / "policies" / "fast.json")
        assert client.post("/v1/policies/reload").status_code == 200
        assert post(client, "a", policy="fast").json()["predictions"][0]["depth"] == 6
        wait_until(lambda: len(client.runner._policies) == 1)


def test_a_policy_that_was_replaced_is_let_go_even_if_its_texts_run_again(processes, folder):
    (folder / "delay.txt").write_text("0.05")
    with processes(workers=1) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, client, *TEXTS, policy="fast")
        wait_until(lambda: client.service.texts_under_way == 40)
        Policy("votes", 9.0).save(folder / "policies" / "fast.json")
        client.post("/v1/policies/reload")
        kill_one(client.runner)
        assert waiting.result().status_code == 200
        assert restarts(client) == 1
        assert not client.runner._policies
        wait_until(lambda: not any(process.policies for process in client.runner.processes))


def test_texts_that_wait_half_way_are_shown_by_layer(processes, folder):
    (folder / "delay.txt").write_text("0.02")
    with processes() as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, client, *TEXTS)
        seen = []
        while not waiting.done():
            seen.append(dict(client.runner.pool_texts))
        assert {layer for shown in seen for layer in shown} & {1, 2, 4, 5}
        assert max(sum(shown.values()) for shown in seen) <= 40
        assert client.runner.pool_texts == {}


def test_audits(processes, folder):
    Policy("max_prob", 0.6, certificate=certified(runtime="numbers")).save(folder / "policy.json")
    with processes(audit=1.0) as client:
        post(client, *TEXTS)
        wait_until(lambda: sum(counts(client, "exitpoll_shadow_texts_total").values()) == 40)


def test_a_text_that_a_client_no_longer_waits_for_is_dropped(processes, folder):
    (folder / "delay.txt").write_text("0.3")
    with processes(workers=1) as client:
        late = post(client, "a", "b", policy="full", timeout_ms=150)
        assert late.status_code == 504
        assert counts(client)['{outcome="expired",policy="full"}'] == 2
        (folder / "delay.txt").unlink()
        assert post(client, "a").status_code == 200
        wait_until(lambda: not client.runner.processes[0].texts)


# ---- faults ---------------------------------------------------------------------------------------------------------


def test_poison_is_found_among_many_and_all_others_are_answered(processes, folder):
    expected = Engine(model_of(), POLICIES["default"])(TEXTS)
    with processes() as client, ThreadPoolExecutor(4) as pool:
        others = [pool.submit(post, client, *TEXTS) for _ in range(3)]
        mixed = post(client, *TEXTS[:10], "kills", *TEXTS[10:20])
        assert mixed.status_code == 200
        rows = mixed.json()["predictions"]
        assert rows[10]["label"] is None
        assert rows[10]["error"].startswith("poison: model processes died")
        answered = [row["label"] for row in rows if row["label"] is not None]
        assert answered == [row.label for row in expected[:20]]
        for future in others:
            assert [row["label"] for row in future.result().json()["predictions"]] == [row.label for row in expected]
        alone = client.post("/predict", json={"inputs": "kills"})
        assert alone.status_code == 500
        assert "poison" in alone.json()["error"]
        assert client.get("/health/live").status_code == 200
        wait_until(lambda: client.get("/health/ready").status_code == 200)
        assert restarts(client) == 4
        assert counts(client)['{outcome="failed",policy="default"}'] == 2
        assert post(client, "a").status_code == 200
    assert calls_with(folder, "kills") == 4  # twice for each request, never a third time


def test_a_text_that_raises_fails_alone_and_kills_nothing(processes):
    with processes() as client:
        rows = post(client, "a", "raises", "b").json()["predictions"]
        assert [row["label"] for row in rows] == ["yes", None, "yes"]
        assert "no such kernel" in rows[1]["error"]
        assert restarts(client) == 0


def test_no_process_is_up(processes, folder):
    """Ready fails, live does not, and what was accepted is answered when a process is back."""
    with processes(workers=1) as client, ThreadPoolExecutor(1) as pool:
        (folder / "broken").touch()
        client.runner.processes[0].process.kill()
        wait_until(lambda: client.get("/health/ready").status_code == 503)
        assert "no model process is up" in client.get("/health/ready").json()["error"]
        assert client.get("/health/live").status_code == 200
        waiting = pool.submit(post, client, *TEXTS)
        wait_until(lambda: len(client.runner.held) == 40)
        assert post(client, "a", timeout_ms=50).status_code == 504
        (folder / "broken").unlink()
        assert waiting.result().status_code == 200
        assert client.get("/health/ready").status_code == 200


def test_processes_killed_under_load_lose_nothing(processes, folder):
    (folder / "delay.txt").write_text("0.002")
    with processes() as client, ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(post, client, *TEXTS) for _ in range(20)]
        for killed in range(3):
            time.sleep(0.1)
            kill_one(client.runner)
            wait_until(lambda: restarts(client) > killed)  # noqa: B023
        assert {future.result().status_code for future in answers} == {200}
        assert counts(client) == {'{outcome="answered",policy="default"}': 800}
        assert restarts(client) == 3


def test_a_text_in_whose_call_processes_are_killed_from_outside_is_not_poison(processes, folder):
    """Four rapid kills, each while the same text is in a call; the others wait behind it."""
    (folder / "delay.txt").write_text("0.5")
    with processes(workers=1) as client, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(post, client, "a", "b c", policy="full")
        for killed in range(MOST_KILLS - 1):
            wait_until(lambda: any(process.board.seconds_in_call() for process in client.runner.processes))
            if killed == MOST_KILLS - 2:
                (folder / "delay.txt").unlink()
            kill_one(client.runner)
            wait_until(lambda: restarts(client) > killed)  # noqa: B023
        assert [row["label"] for row in answer.result().json()["predictions"]] == ["yes", "yes"]
        assert restarts(client) == MOST_KILLS - 1


def test_a_text_that_is_killed_every_time_is_given_up(processes, folder):
    with processes() as client:
        rows = post(client, "a", "uses up", "b").json()["predictions"]
        assert [row["label"] for row in rows] == ["yes", None, "yes"]
        assert rows[1]["error"].startswith("poison")
        wait_until(lambda: restarts(client) == MOST_KILLS)
    assert calls_with(folder, "uses up") == MOST_KILLS


def test_a_process_whose_call_hangs_is_replaced(processes):
    with processes(workers=1, stall_timeout=1.5) as client:
        rows = post(client, "a", "hangs").json()["predictions"]
        assert [row["label"] for row in rows] == ["yes", None]
        assert "hung" in rows[1]["error"]
        assert restarts(client) == 2
        assert client.get("/health/live").status_code == 200
        assert post(client, "a").status_code == 200


FRONT = """
import sys, time
sys.path[:] = {path!r}
import exitpoll.server.worker_process
from tests.server.faulty import MAIN, load
exitpoll.server.worker_process.MAIN = MAIN
from exitpoll.server.service import Service
from exitpoll.server.settings import ServerSettings
service = Service(load({folder!r}), settings=ServerSettings(workers=2))
service.start()
while sum(process.is_ready for process in service.runner.processes) < 2:
    time.sleep(0.01)
print(*[process.process.pid for process in service.runner.processes], flush=True)
time.sleep(60)
"""


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_front_is_killed_and_leaves_no_orphan(folder):
    code = FRONT.format(path=sys.path, folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        pids = [int(word) for word in front.stdout.readline().split()]
        assert all(is_running(pid) for pid in pids)
        for pid in pids:  # signals that are meant for the front
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        front.kill()
    wait_until(lambda: not any(is_running(pid) for pid in pids), seconds=2)


def test_a_process_without_a_front_ends_by_itself(folder):
    """Also where the system does not kill it: its connection is closed."""
    ours, theirs = socket.socketpair()
    board = open_board()
    words = [str(theirs.fileno()), str(board), str(os.getpid())]
    code = f"import sys; sys.path[:] = {sys.path!r}; from exitpoll.server.worker import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], pass_fds=(theirs.fileno(), board), stderr=subprocess.PIPE, text=True
    ) as process:
        theirs.close()
        os.close(board)
        ours.close()
        assert process.stderr is not None
        assert process.stderr.read() == "exitpoll: a model process cannot start: the front has ended\n"
    assert process.returncode == 1


def test_a_model_in_memory_has_no_processes(folder):
    with pytest.raises(InputError, match="a model that was made in memory has no processes"):
        Service(model_of(), folder=folder, settings=ServerSettings(workers=1))
    with pytest.raises(InputError, match="workers 1000 must be at most"):
        ServerSettings(workers=1000)
    assert 1 <= default_workers() <= 8


# ---- frames ---------------------------------------------------------------------------------------------------------


def sent_text(**fields):
    usual = {"max_depth": None, "due": float("inf"), "deadline": None, "explain": False, "alone": False}
    return SentText(1 << 40, 7, {"input_ids": [1, 2, 30_000]}, submitted=0.5, **{**usual, **fields})


@pytest.mark.parametrize(
    "text",
    [
        sent_text(),
        sent_text(max_depth=0, due=1.5, deadline=2.5, explain=True),
        sent_text(alone=True),
        SentText(0, 0, {"input_ids": [], "token_type_ids": [0, 1]}, 3, 0.0, None, 1.0, True, True),
    ],
)
def test_texts_are_read_as_they_were_written(text):
    stream = bytearray(pack_text(text) + frame(Kind.CANCEL, b"12345678"))
    first = list(take_frames(part := stream[:20]))
    part += stream[20:]
    assert first == []
    [(kind, content), (other, _)] = take_frames(part)
    assert (kind, other, part) == (Kind.TEXT, Kind.CANCEL, b"")
    assert read_text(content) == text


@pytest.mark.parametrize(
    ("problem_type", "label", "probability"),
    [
        ("single_label_classification", "no", 0.1),
        ("multi_label_classification", ("yes",), {"yes": 0.75, "no": 0.25}),
        ("multi_label_classification", (), {"yes": 0.5, "no": 0.25}),
        ("regression", 0.1, float("nan")),
    ],
)
def test_results_are_read_as_they_were_written(problem_type, label, probability):
    runtime = model_of().runtime
    runtime.problem_type = problem_type
    model = LoadedModel(runtime, model_of().tokenize, ["yes", "no"])
    logits = np.array([0.1, np.nan], dtype=np.float32)
    prediction = Prediction(label, probability, 4, False, 12, logits, ["yes", "no"])
    seen = np.arange(6, dtype=np.float32).reshape(3, 2)
    number, result = read_result(pack_result(5, Result(2, prediction, 0.25, 0.5, seen))[5:], without_weights(model))
    assert (number, result.index, result.queue_seconds, result.model_seconds) == (5, 2, 0.25, 0.5)
    assert repr(result.prediction) == repr(prediction)
    assert result.prediction is not None
    assert (result.prediction.tokens, result.prediction.label_names) == (12, ["yes", "no"])
    np.testing.assert_array_equal(result.prediction.logits, logits)
    np.testing.assert_array_equal(result.seen, seen)
    assert result.seen.dtype == np.float32


def test_failures_and_calls_are_read_as_they_were_written():
    result = Result(0, None, error="überlauf", expired=True)
    assert read_result(pack_result(9, result)[5:], model_of()) == (9, result)
    step, seconds, waiting = read_call(pack_call(Step(numbers=[4, 5], tokens=9, padded=10, depth=2), 0.5, {1: 7})[5:])
    assert (len(step.numbers), step.tokens, step.padded, step.depth, seconds, waiting) == (2, 9, 10, 2, 0.5, {1: 7})


def test_the_board():
    descriptor = open_board()
    board = Board(descriptor)
    os.close(descriptor)
    assert (board.seconds_in_call(), board.suspects([1, 2])) == (0.0, set())
    board.begin([2, 3])
    assert 0 < board.seconds_in_call() < 5
    assert board.suspects([1, 2]) == {2}
    board.begin(range(MOST + 1))
    assert board.suspects([9999, 1]) == {9999, 1}
    board.end()
    assert board.seconds_in_call() == 0.0
