"""Connect to Ray: start it here, or use a cluster that runs; whatever cannot work is refused in one line, and soon."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exitpoll.errors import InputError, check_installed

if TYPE_CHECKING:
    from grpc import Channel

AUTO, LOCAL = "auto", "local"
RAY_ADDRESS = "RAY_ADDRESS"  # the variable that says what "auto" means, which `ray job submit` sets
CERTIFICATES = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")  # files, with RAY_USE_TLS=1
CONNECT_SECONDS = 5.0  # for a cluster to answer
OBJECT_STORE = 128 << 20  # bytes, of a local Ray: only numbers of shards go through it
LOOK = 1.0  # seconds between looks at the process that started this one
# Ray started here: no usage statistics, no dashboard; and no warning about accelerators where there are none.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextmanager
def connected(cluster: str, workers: int | None) -> Iterator[int]:
    """Connect to Ray, and disconnect at the end; a Ray that runs in this process already is used and left alone.

    Args:
        cluster: "auto" for the cluster of this machine, "local" to start Ray here, or HOST:PORT of a cluster.
        workers: How many workers of one CPU are needed; by default as many as there are CPUs.

    Yields:
        How many workers to use.
    """
    check_installed(["ray"], "running on a cluster", "cluster")
    _check_name(cluster)
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        cluster = _checked(cluster)
    if cluster == LOCAL:
        _check_cpus(workers, len(os.sched_getaffinity(0)), "this machine")
    if is_ours:
        _start(cluster, workers)
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        _check_cpus(workers, cpus, "the cluster")
        yield workers or cpus
    finally:
        if is_ours:
            ray.shutdown()


def _checked(cluster: str) -> str:
    """Return "local", or the address of a cluster that answers."""
    where = f"at {cluster}"
    if cluster == AUTO:
        cluster = _address_here()
        where = f"at {cluster}, where the last one of this machine was"
        if os.environ.get(RAY_ADDRESS) == cluster:
            _check_name(cluster, RAY_ADDRESS)
            where = f"at {cluster}, which {RAY_ADDRESS} names"
    if cluster != LOCAL:
        _check_answers(cluster, where)
    return cluster


def _address_here() -> str:
    """Return what "auto" means to Ray: RAY_ADDRESS, a cluster that runs on this machine, or the last that did."""
    from ray._private.services import get_ray_address_from_environment

    try:
        return get_ray_address_from_environment(AUTO, None)
    except ConnectionError as error:
        raise _no_cluster("on this machine") from error


def _check_name(cluster: str, given_as: str = "cluster") -> None:
    """Refuse what is no way to name a cluster."""
    host, _, port = cluster.rpartition(":")
    if "://" in cluster:
        raise InputError(
            f"{given_as} '{cluster}' is not supported: use 'ray job submit' to run on another machine's cluster"
        )
    if cluster not in (AUTO, LOCAL) and not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise InputError(f"{given_as} '{cluster}' must be auto, local or HOST:PORT", options=["cluster"])


def _check_cpus(workers: int | None, cpus: int, where: str) -> None:
    """Refuse more workers than there are CPUs: Ray would wait for ever."""
    if workers is not None and workers < 1:
        raise InputError(f"processes {workers} must be at least 1", options=["processes"])
    if cpus < 1:
        raise InputError(f"{workers or 1} workers of one thread need {workers or 1} CPUs, and {where} has 0; add nodes")
    if workers is not None and workers > cpus:
        message = f"{workers} workers of one thread need {workers} CPUs, and {where} has {cpus}"
        raise InputError(f"{message}; use processes {cpus} or less", options=["processes"])


def _check_answers(address: str, where: str) -> None:
    """Refuse an address at which no cluster answers, which Ray itself takes minutes to find out."""
    import grpc

    channel = _channel_to(address)
    try:
        grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
    except grpc.FutureTimeoutError as error:
        raise _no_cluster(where) from error
    finally:
        channel.close()


def _channel_to(address: str) -> Channel:
    """Open a channel as Ray does: with the certificates that its variables name, if the cluster uses TLS."""
    import grpc

    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(address)
    try:
        contents = [Path(os.environ[name]).read_bytes() for name in CERTIFICATES]
    except (KeyError, OSError) as error:
        raise InputError(f"with RAY_USE_TLS, {', '.join(CERTIFICATES)} must name files ({error})") from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*contents))


def _start(cluster: str, workers: int | None) -> None:
    """Start Ray, or join a cluster."""
    import ray

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if cluster == LOCAL:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        options |= {"num_cpus": workers or len(os.sched_getaffinity(0)), "include_dashboard": False}
        options |= {"object_store_memory": OBJECT_STORE}
    try:
        ray.init(address=cluster, **options)
    except ConnectionError as error:
        raise _no_cluster(f"at {cluster}") from error
    except (RuntimeError, ValueError, TimeoutError) as error:  # versions that differ, a token that is missing
        raise InputError(f"cannot use the Ray cluster '{cluster}': {error}") from error


def _no_cluster(where: str) -> InputError:
    """Say that no cluster was found."""
    return InputError(f"no Ray cluster answers {where}; start one with 'ray start --head', or use cluster local")


@cache
def end_with_node() -> None:
    """End this process soon after that of Ray which started it: Ray itself takes minutes to end those that are left.

    A command that is killed ends the Ray that it started, and a trial must not go on training for nobody.
    """
    node = os.getppid()

    def watch() -> None:
        while os.getppid() == node:
            time.sleep(LOOK)
        os._exit(1)

    threading.Thread(target=watch, name="exitpoll-end-with-node", daemon=True).start()
