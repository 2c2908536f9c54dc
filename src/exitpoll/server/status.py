"""GET /v1/status: what the page at / shows live, as JSON: texts, depths, queue, and guarantees with their bounds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from exitpoll.server.audits import Audits
from exitpoll.server.service import Service


def status(service: Service) -> dict[str, Any]:
    """Count what the server has done since it started.

    Args:
        service: The service.

    Returns:
        Counts, of which a client may take differences: `seconds` is a clock.
    """
    return {
        "seconds": round(time.monotonic(), 3),
        "ready": service.is_ready,
        "default": service.policy_named(None).name,
        "texts": texts_by_outcome(service.metrics.texts.collect()),
        "depths": counts_by_bound(service.metrics.depth),
        "queue": {
            "texts": service.texts_under_way,
            "layer_tokens": service.work,
            "max_layer_tokens": service.settings.max_queue,
        },
        "audit": service.settings.audit,
        "guarantees": guarantees(service.audits),
        "shifts": {
            name: {
                "windows": watch.windows,
                "shift": None if watch.shift is None else str(watch.shift),
                "means": {one.name: {"live": one.here, "calibration": one.at_calibration} for one in watch.compared},
            }
            for name, watch in service.shifts.watches.items()
        },
    }


def texts_by_outcome(families: Iterable[Metric]) -> dict[str, int]:
    """Add the texts of all policies, by what became of them."""
    counted: dict[str, int] = {}
    for family in families:
        for sample in family.samples:
            if sample.name.endswith("_total"):
                outcome = sample.labels["outcome"]
                counted[outcome] = counted.get(outcome, 0) + int(sample.value)
    return counted


def counts_by_bound(histogram: Histogram) -> dict[str, int]:
    """Return how many values each bucket of a histogram holds, by its bound; the one without bound is left out."""
    [family] = histogram.collect()
    bounded = [sample for sample in family.samples if sample.name.endswith("_bucket") and sample.labels["le"] != "+Inf"]
    counted, before = {}, 0
    for sample in bounded:
        counted[f"{float(sample.labels['le']):g}"] = int(sample.value) - before
        before = int(sample.value)
    return counted


def guarantees(audits: Audits) -> dict[str, Any]:
    """Return what audits found of each guarantee that is watched."""
    return {
        name: {
            "limit": monitor.limit,
            "confidence": monitor.confidence,
            "texts": monitor.texts,
            "differing": monitor.differing,
            "bound": round(monitor.lower_bound, 6),
            "broken": monitor.is_broken,
        }
        for name, monitor in audits.monitors.items()
    }
