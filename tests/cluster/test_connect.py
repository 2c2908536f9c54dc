"""What cannot run on a cluster is refused in one line, and soon; Ray is not started for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from exitpoll import InputError
from exitpoll.cli.cluster import study_executor
from exitpoll.cluster import connect
from exitpoll.cluster.connect import CERTIFICATES, connected
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


@pytest.mark.parametrize("cpus", [0.0, 0.5])
def test_a_cluster_without_cpus_is_refused(monkeypatch, cpus):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": cpus})
    for workers, message in {None: "1 workers of one thread need 1 CPUs", 3: "3 workers of one thread need 3"}.items():
        with pytest.raises(InputError, match=f"{message}.*, and the cluster has 0; add nodes"):
            refuse("auto", workers)


@pytest.fixture
def silent():
    """The address of a server that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("is_named", [True, False])
def test_the_command_refuses_an_address_without_a_cluster_within_ten_seconds(silent, model_folder, tmp_path, is_named):
    """Open, with something else behind it; named by --cluster or by what `auto` stands for."""
    pytest.importorskip("ray")
    source = write_tsv(tmp_path / "in.tsv", toy_rows(3))
    words = ["predict", model_folder, "--data", source, "--out", tmp_path / "out.csv"]
    command = [sys.executable, "-m", "exitpoll", *map(str, words), "--cluster", silent if is_named else "auto"]
    environment = os.environ | ({} if is_named else {"RAY_ADDRESS": silent})
    started = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert time.monotonic() - started < 10
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"exitpoll: no Ray cluster answers at {silent}")
    assert "start one with 'ray start --head'" in done.stderr


def test_a_closed_address_is_refused(silent, monkeypatch):
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(InputError, match=f"no Ray cluster answers at {address}; start one"):
        refuse(address)


def test_what_auto_stands_for_is_checked_like_any_other_address(silent, monkeypatch):
    services = pytest.importorskip("ray._private.services")
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(services, "find_gcs_addresses", frozenset)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: silent)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(InputError, match=f"answers at {silent}, where the last one of this machine was; start one"):
        refuse("auto")
    monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: None)
    with pytest.raises(InputError, match="no Ray cluster answers on this machine; start one"):
        refuse("auto")
    for address, message in {
        silent: f"no Ray cluster answers at {silent}, which RAY_ADDRESS names",
        "ray://head:10001": "RAY_ADDRESS 'ray://head:10001' is not supported: use 'ray job submit'",
        "head": "RAY_ADDRESS 'head' must be auto, local or HOST:PORT",
    }.items():
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=message):
            refuse("auto")


def test_a_cluster_with_tls_answers_those_with_its_certificates(monkeypatch, tmp_path):
    grpc = pytest.importorskip("grpc")
    tls = pytest.importorskip("ray._common.tls_utils")
    certificate, key = (text.encode() for text in tls.generate_self_signed_tls_certs())
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, certificate)], certificate, True))
    server.start()
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 5.0)
    try:
        monkeypatch.setenv("RAY_USE_TLS", "1")
        with pytest.raises(InputError, match=r"with RAY_USE_TLS, RAY_TLS_CA_CERT, .* must name files"):
            connect._check_answers(f"localhost:{port}", "here")
        for name, content in zip(CERTIFICATES, (certificate, key, certificate), strict=True):
            (tmp_path / name).write_bytes(content)
            monkeypatch.setenv(name, str(tmp_path / name))
        connect._check_answers(f"localhost:{port}", "here")
        monkeypatch.delenv("RAY_USE_TLS")
        monkeypatch.setattr(connect, "CONNECT_SECONDS", 1.0)
        with pytest.raises(InputError, match="no Ray cluster answers here"):
            connect._check_answers(f"localhost:{port}", "here")
    finally:
        server.stop(None)


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
