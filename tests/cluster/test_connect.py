"""What cannot run on a cluster is refused in one line, and soon; Ray is not started for it."""

from __future__ import annotations

import os
import socket
import sys
import time
from types import SimpleNamespace

import pytest

from exitpoll import InputError
from exitpoll.cli.cluster import study_executor
from exitpoll.cluster.connect import connected
from exitpoll.cluster.scaling import WORK, ByQueuedWork
from exitpoll.errors import MissingExtraError
from tests.tiny import toy_rows, write_tsv


def refuse(cluster, workers=None):
    with connected(cluster, workers):
        raise AssertionError


def test_names_of_clusters():
    for name in ("here", "host:", ":6379", "host:port", "host:99999"):
        with pytest.raises(InputError, match=f"cluster '{name}' must be auto, local or HOST:PORT"):
            refuse(name)
    with pytest.raises(InputError, match="is not supported: use 'ray job submit'"):
        refuse("ray://head:10001")


def test_more_workers_than_cpus_are_refused_with_the_numbers():
    cpus = len(os.sched_getaffinity(0))
    message = (
        f"{cpus + 3} workers of one thread need {cpus + 3} CPUs, and this machine has {cpus}; use processes {cpus}"
    )
    with pytest.raises(InputError, match=message):
        refuse("local", cpus + 3)
    with pytest.raises(InputError, match="processes 0 must be at least 1"):
        refuse("local", 0)


@pytest.mark.parametrize("is_open", [False, True])
def test_an_address_without_a_cluster_is_refused_within_ten_seconds(is_open):
    """Closed, or open with something else behind it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        if not is_open:
            listener.close()
        started = time.monotonic()
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address}; start one with 'ray start --head'"):
            refuse(address)
        assert time.monotonic() - started < 10


def test_the_extra_is_named_where_ray_is_missing(monkeypatch, refused, model_folder, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr("exitpoll.errors.find_spec", lambda name: None if name == "ray" else SimpleNamespace())
    with pytest.raises(MissingExtraError, match=r"pip install 'exitpoll\[cluster\]'"):
        refuse("local")
    source = write_tsv(tmp_path / "in.tsv", toy_rows(3))
    words = ["predict", model_folder, "--data", source, "--out", tmp_path / "out.csv"]
    refused("running on a cluster needs more packages", *words, "--cluster", "local")
    refused("use --processes", *words, "--cluster", "local", "--threads", "2")
    with pytest.raises(InputError, match="processes is for a cluster: add cluster local"), study_executor(None, 2):
        raise AssertionError


@pytest.mark.parametrize(("work", "replicas"), [({}, 1), ({"a": 10.0}, 1), ({"a": 900.0, "b": 200.0}, 3)])
def test_replicas_follow_the_queued_work(work, replicas):
    context = SimpleNamespace(aggregated_metrics={WORK: work} if work else None)
    assert ByQueuedWork(500)(context)[0] == replicas
