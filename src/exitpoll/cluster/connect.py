"""Connect to Ray: start it here, or use a cluster that runs; whatever cannot work is refused in one line, and soon."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exitpoll.errors import InputError, check_installed

AUTO, LOCAL = "auto", "local"
CONNECT_SECONDS = 5.0  # for a cluster to answer
OBJECT_STORE = 128 << 20  # bytes, of a local Ray: only numbers of shards go through it
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
    if cluster == LOCAL:
        _check_cpus(workers, len(os.sched_getaffinity(0)), "this machine")
    elif cluster != AUTO:
        _check_answers(cluster)
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        _start(cluster, workers)
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        _check_cpus(workers, cpus, "the cluster")
        yield workers or max(1, cpus)
    finally:
        if is_ours:
            ray.shutdown()


def _check_name(cluster: str) -> None:
    """Refuse what is no way to name a cluster."""
    host, _, port = cluster.rpartition(":")
    if "://" in cluster:
        raise InputError(
            f"cluster '{cluster}' is not supported: use 'ray job submit' to run on another machine's cluster"
        )
    if cluster not in (AUTO, LOCAL) and not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise InputError(f"cluster '{cluster}' must be auto, local or HOST:PORT", options=["cluster"])


def _check_cpus(workers: int | None, cpus: int, where: str) -> None:
    """Refuse more workers than there are CPUs: Ray would wait for ever."""
    if workers is not None and workers < 1:
        raise InputError(f"processes {workers} must be at least 1", options=["processes"])
    if workers is not None and workers > cpus:
        message = f"{workers} workers of one thread need {workers} CPUs, and {where} has {cpus}"
        raise InputError(f"{message}; use processes {cpus} or less", options=["processes"])


def _check_answers(address: str) -> None:
    """Refuse an address at which no cluster answers, which Ray itself takes minutes to find out."""
    import grpc

    channel = grpc.insecure_channel(address)
    try:
        grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
    except grpc.FutureTimeoutError as error:
        raise _no_cluster(f"at {address}") from error
    finally:
        channel.close()


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
        raise _no_cluster("on this machine" if cluster == AUTO else f"at {cluster}") from error
    except (RuntimeError, ValueError, TimeoutError) as error:  # versions that differ, a token that is missing
        raise InputError(f"cannot use the Ray cluster '{cluster}': {error}") from error


def _no_cluster(where: str) -> InputError:
    """Say that no cluster was found."""
    return InputError(f"no Ray cluster answers {where}; start one with 'ray start --head', or use cluster local")
