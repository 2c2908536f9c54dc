"""On Ray Serve: the answers of `exitpoll serve`, while policies, replicas and the load change."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from exitpoll import InputError, Policy
from exitpoll.cluster import deployment
from tests.cluster.local_ray import CLIENTS, ask, load_on, wait_until, workers_below
from tests.tiny import toy_rows

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

ROWS = toy_rows(60)
NEVER, ALWAYS = Policy("max_prob", None), Policy("max_prob", 0.0)
TWO = {"replicas": 2, "name": "toy"}


@pytest.fixture(scope="module")
def served(ray_folder):
    """The address of Ray Serve, and a function that deploys an application or updates it."""
    from ray import serve
    from ray.serve._private import client

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "CLIENT_POLLING_INTERVAL_S", 0.05)  # how often it asks whether an update is done
        yield f"http://127.0.0.1:{port}", lambda app: serve.run(app, name="tests", route_prefix="/")
    serve.shutdown()


def replicas_in(folder):
    return workers_below(folder, "ServeReplica")


def test_policies_change_under_load_without_a_failed_request(ray_folder, served, exported_folder):
    (url, run), texts = served, [ROWS[0][0]]
    run(deployment(exported_folder, policy=NEVER, **TWO))
    deepest, replicas = ask(url, texts).depth, replicas_in(ray_folder)
    assert len(replicas) == 2
    with load_on(url, texts) as answers:
        for number in range(20):
            run(deployment(exported_folder, policy=ALWAYS if number % 2 else NEVER, **TWO))
        broken = Policy("max_prob", 0.5, problem_type="multi_label_classification")  # of another model
        run(deployment(exported_folder, policy=broken, **TWO))
    assert {answer.status for answer in answers} == {200}
    assert {answer.depth for answer in answers} == {deepest, 1}
    assert replicas_in(ray_folder) == replicas  # the same as before
    assert {ask(url, texts).depth for _ in range(8)} == {1}  # the broken update left the last one


def test_a_killed_replica_costs_what_was_in_flight_on_it(ray_folder, served, exported_folder):
    """It is stopped first: what is then not answered is in flight on it, while the other replica answers."""
    (url, run), texts, in_flight = served, [row[0] for row in ROWS * 4], set()
    run(deployment(exported_folder, policy=NEVER, **TWO))
    clients = 4 * CLIENTS  # so that each replica always has some
    killed, kept = replicas_in(ray_folder)
    with load_on(url, texts, clients, in_flight) as answers:
        wait_until(lambda: len(answers) >= 2 * clients)
        os.kill(killed, signal.SIGSTOP)
        on_killed = requests_that_wait(answers, in_flight)
        wait_until(lambda: len(in_flight - on_killed) >= CLIENTS)  # there are others, on the replica that stays
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: len(set(replicas_in(ray_folder)) - {killed}) == 2)  # it is replaced
        before = len(answers)
        wait_until(lambda: len(answers) >= before + 2 * clients)
    assert kept in replicas_in(ray_folder)
    lost = {answer.sent for answer in answers if answer.status != 200}
    assert lost <= on_killed
    assert 1 <= len(on_killed) < clients


def requests_that_wait(answers, in_flight):
    """Return the requests that are not answered while many others are, when they were sent."""
    earlier = set()
    while True:
        waiting, before = set(in_flight), len(answers)
        wait_until(lambda before=before: len(answers) >= before + 32, seconds=30)
        waiting &= in_flight
        if waiting and waiting == earlier:  # nor did one join them
            return waiting
        earlier = waiting


def test_requests_beyond_the_queue_are_refused_with_429(ray_folder, served, exported_folder):
    (url, run), texts = served, [row[0] for row in ROWS * 4]
    run(deployment(exported_folder, policy=NEVER, name="toy", max_ongoing_requests=1, max_queued_requests=1))
    with load_on(url, texts, clients=8) as answers:
        wait_until(lambda: {answer.status for answer in answers} >= {200, 429})
    assert {answer.status for answer in answers} == {200, 429}
    assert {answer.retry_after for answer in answers if answer.status == 429} == {"1"}


def test_replicas_follow_the_load(ray_folder, served, exported_folder):
    (url, run), texts = served, [row[0] for row in ROWS * 4]
    quick = {"upscale_delay_s": 0.2, "downscale_delay_s": 0.2, "metrics_interval_s": 0.2, "look_back_period_s": 1.0}
    run(deployment(exported_folder, policy=NEVER, name="toy", replicas=(1, 2), target_work=1, **quick))
    wait_until(lambda: len(replicas_in(ray_folder)) == 1)
    with load_on(url, texts) as answers:
        wait_until(lambda: len(replicas_in(ray_folder)) == 2)
    wait_until(lambda: len(replicas_in(ray_folder)) == 1)
    assert {answer.status for answer in answers} == {200}
    assert ask(url, texts).status == 200


def test_deployments_that_cannot_be_are_refused(exported_folder):
    with pytest.raises(InputError, match="policy: strategy 'nonsense'"):
        deployment(exported_folder, policy={**ALWAYS.to_dict(), "strategy": "nonsense"})
    with pytest.raises(InputError, match="the first must not be larger than the second"):
        deployment(exported_folder, replicas=(2, 1))
