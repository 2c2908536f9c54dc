"""The option --cluster: where the verbs that have it do their work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from exitpoll.errors import InputError


@contextmanager
def study_executor(cluster: str | None, processes: int | None) -> Iterator[dict[str, Any]]:
    """Choose where the runs of a search or a reproduction are executed.

    Args:
        cluster: The option --cluster; None to execute them here, one after another.
        processes: How many to execute at a time on the cluster.

    Yields:
        The arguments `executor` and `workers` of a search or a reproduction; none for their defaults.
    """
    if cluster is None:
        if processes is not None:
            raise InputError("processes is for a cluster: add cluster local", options=["processes", "cluster"])
        yield {}
        return
    from exitpoll.cluster.connect import connected

    with connected(cluster, processes) as workers:
        from exitpoll.cluster.study import RayRuns

        yield {"executor": RayRuns(), "workers": workers}
