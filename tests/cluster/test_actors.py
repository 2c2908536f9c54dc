"""Actors and their shards, without Ray: what happens when a worker is lost."""

from __future__ import annotations

import logging
import os
import sys
import time
from types import SimpleNamespace

import pytest

from exitpoll import InputError
from exitpoll.cluster import predict
from exitpoll.cluster.predict import RayActors, ShardActor


class RayError(Exception):
    pass


class Call:
    """A method of an actor, called later; or never, where there is none."""

    def __init__(self, method):
        self.method = method

    def remote(self, *given):
        return self.method and (lambda: self.method(*given))


def lose(*_):
    raise RayError("the node was lost")


class FakeRay:
    """A cluster on which each new actor behaves as the next of a list says; each keeps its CPU.

    "works"; "lost" with its first shard; "fails" to start; "waits" for a CPU that never comes.
    """

    def __init__(self, *behaviors):
        self.behaviors, self.actors = behaviors, []
        self.exceptions = SimpleNamespace(RayError=RayError)

    def remote(self, **options):
        return lambda of: SimpleNamespace(remote=self.start)

    def start(self, folder):
        behavior = self.behaviors[len(self.actors)]
        self.actors.append(behavior)
        ready = {"fails": lose, "waits": None}.get(behavior, dict)
        return SimpleNamespace(
            ready=Call(ready), predict=Call(lose if behavior == "lost" else lambda shard: {"done": shard})
        )

    def wait(self, calls, timeout):
        done = [call for call in calls if call is not None][:1]
        if not done:
            assert timeout is not None  # or this would never end
            time.sleep(timeout)
        return done, calls

    def get(self, call):
        return call()

    def kill(self, actor):
        pass

    def cluster_resources(self):
        return {"CPU": 4.0}

    def available_resources(self):
        return {}


@pytest.fixture
def run_on(monkeypatch, tmp_path):
    """A function that predicts shards on a cluster that is not there."""
    monkeypatch.setattr(predict.Plan, "load", lambda folder: SimpleNamespace(shards=[f"shard {n}" for n in range(9)]))

    def run(workers, shards, *behaviors):
        cluster = FakeRay(*behaviors)
        monkeypatch.setitem(sys.modules, "ray", cluster)
        assert sorted(RayActors(workers).run(tmp_path, range(shards))) == list(range(shards))
        assert len(cluster.actors) == len(behaviors)

    return run


def test_an_idle_actor_takes_the_shard_of_one_that_was_lost(run_on):
    """A new actor could not start: idle ones hold all CPUs."""
    run_on(2, 2, "works", "lost")


def test_a_job_is_given_up_where_no_worker_is_left(run_on, monkeypatch, caplog):
    monkeypatch.setattr(predict, "LOST_SECONDS", 0.2)
    monkeypatch.setattr(predict, "NOTE_SECONDS", 0.05)
    message = "no worker has been running for 0 s: the cluster has 4 CPUs, of which 0 are free; what is done is kept"
    started = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(InputError, match=message):
        run_on(1, 2, "lost", "waits")
    assert time.monotonic() - started < 5
    assert "no worker has been running for 0 s of at most 0 s: the cluster has 4 CPUs" in caplog.text


def test_a_job_is_given_up_where_no_worker_starts(run_on, monkeypatch):
    monkeypatch.setattr(predict, "START_SECONDS", 0.1)
    with pytest.raises(InputError, match=r"no worker has started within 0 s: .* wait for its other work to end"):
        run_on(2, 2, "waits", "waits")


def test_only_failures_to_start_one_after_another_end_a_job(run_on):
    few = ["fails", "fails", "lost"]
    run_on(1, 5, *few, *few, "works")  # four failures, two at a time
    with pytest.raises(InputError, match=r"starting workers ended 3 workers; .* \(the node was lost\)"):
        run_on(1, 5, *few, "fails", "fails", "fails")


def test_a_worker_that_does_not_see_the_job_says_so(monkeypatch, tmp_path):
    """It must not advise to remove the folder: the shards that are done are in it."""
    monkeypatch.setattr(predict, "end_with_node", lambda: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    found = ShardActor(tmp_path / "elsewhere").predict(0)
    assert "elsewhere', the folder of the job, which must be on a disk that all nodes share" in found["error"]
    assert "remove" not in found["error"]
