"""How many replicas a deployment needs, by the work that is queued rather than by the number of requests."""

from __future__ import annotations

import math
from typing import Any

WORK = "queued_layer_tokens"  # what replicas report: tokens of all texts under way, each times all layers


class ByQueuedWork:
    """An autoscaling policy of Ray Serve: so many replicas that each has at most some work under way."""

    def __init__(self, target: float) -> None:
        """Set the target.

        Args:
            target: Layer-tokens under way for each replica.
        """
        self.target = target

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of replicas, which Ray Serve keeps within its bounds.

        Args:
            context: What Ray Serve knows of the deployment.
        """
        work = (context.aggregated_metrics or {}).get(WORK) or {}
        return max(1, math.ceil(sum(work.values()) / self.target)), {}
