"""Ray Serve: the app of `exitpoll serve` in every replica, with policies that change while it runs."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Mapping
from importlib.metadata import version as package_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exitpoll.cluster.scaling import WORK, ByQueuedWork
from exitpoll.decide.policy import Policy
from exitpoll.engine.arguments import to_integer
from exitpoll.engine.loading import find_folder
from exitpoll.engine.model_choice import ModelChoice
from exitpoll.errors import InputError, check_installed
from exitpoll.server.settings import ServerSettings

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.applications import Starlette

POLICY = "policy"  # in the user_config of a deployment
CPUS = 1.0  # of a replica, which has one thread
RETRY_AFTER = 1.0  # seconds, for requests that Ray Serve itself refuses
logger = logging.getLogger("exitpoll.cluster")


def deployment(
    model: str | Path,
    runtime: str | None = None,
    *,
    policy: Policy | Mapping[str, Any] | None = None,
    replicas: int | tuple[int, int] = 1,
    target_work: int = 200_000,
    settings: ServerSettings | None = None,
    name: str = "exitpoll",
    max_ongoing_requests: int = 1000,
    max_queued_requests: int = 1000,
    **autoscaling: Any,
) -> Application:
    """Make an application of Ray Serve: `serve.run(deployment("trec-bert", replicas=2))`.

    Args:
        model: As for `Engine.load`; all nodes of the cluster must see the folder.
        runtime: As for `Engine.load`.
        policy: The default policy, in place of the folder's; a later `serve.run` with another one, and all else the
            same, changes it without a new replica, and if it is broken, the old one stays.
        replicas: How many replicas of one thread; a smallest and a largest number scale by load.
        target_work: Layer-tokens under way for each replica, by which their number is chosen.
        settings: Limits of every replica, as of `exitpoll serve`.
        name: The name of the model for clients.
        max_ongoing_requests: Most requests at a time in a replica, which has limits of its own in layer-tokens.
        max_queued_requests: Most requests that wait for a replica; above it Ray Serve answers 429.
        autoscaling: More fields of Ray Serve's AutoscalingConfig, such as `downscale_delay_s`.

    Returns:
        The application.
    """
    check_installed(["ray", "starlette", "prometheus_client"], "serving on a cluster", "cluster")
    from ray import serve
    from ray.serve.config import BackpressureConfig

    choice, limits = ModelChoice.of(model, runtime), settings or ServerSettings()
    if isinstance(policy, Mapping):
        policy = Policy.from_dict(policy, "policy")
    decorated = serve.deployment(
        serve.ingress()(Replica),
        name=name,
        max_ongoing_requests=to_integer("max_ongoing_requests", max_ongoing_requests),
        max_queued_requests=to_integer("max_queued_requests", max_queued_requests),
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=RETRY_AFTER),
        ray_actor_options={"num_cpus": CPUS},
        user_config={} if policy is None else {POLICY: policy.to_dict()},
        **_number_of(replicas, target_work, autoscaling),
    )
    # Ray Serve takes every `serve.run` for new code, and starts new replicas, unless the version stays the same.
    version = _version_of(choice, limits, scales=isinstance(replicas, tuple))
    decorated = decorated.options(version=version, _internal=True)
    return decorated.bind(choice, limits, name)


def _version_of(model: ModelChoice, settings: ServerSettings, *, scales: bool) -> str:
    """Return a hash of all that needs a new replica when it changes: code, model and limits.

    Whether the number of replicas scales does, too: one that was started without that never reports its work.
    """
    content = [package_version("exitpoll"), repr(model), model.fingerprint, repr(settings), scales]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _number_of(replicas: int | tuple[int, int], target_work: int, autoscaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that say how many replicas there are."""
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    if not isinstance(replicas, tuple):
        return {"num_replicas": to_integer("replicas", replicas)}
    fewest, most = (to_integer("replicas", number) for number in replicas)
    if fewest > most:
        raise InputError(f"replicas {replicas}: the first must not be larger than the second")
    target = {"target": to_integer("target_work", target_work)}
    policy = AutoscalingPolicy(policy_function=ByQueuedWork, policy_kwargs=target)
    bounds = {"min_replicas": fewest, "max_replicas": most}
    return {"autoscaling_config": AutoscalingConfig(**bounds, policy=policy, **autoscaling)}


class Replica:
    """A model with its scheduler and HTTP app, in a replica of Ray Serve."""

    def __init__(self, model: ModelChoice, settings: ServerSettings, name: str) -> None:
        """Load the model.

        Args:
            model: The model.
            settings: The limits.
            name: The name of the model for clients.
        """
        from exitpoll.server.run import SWITCH_INTERVAL
        from exitpoll.server.service import Service

        sys.setswitchinterval(SWITCH_INTERVAL)
        engine = model.load(None)
        folder = find_folder(model.folder, model.runtime)
        self._own = None if folder.is_dir() else engine.policy  # of a model on the hub
        self.service = Service(
            engine.model,
            folder=folder if folder.is_dir() else None,
            policy=self._own,
            settings=settings,
            costs=engine.costs,
            name=name,
        )
        self._is_configured = False

    def __serve_build_asgi_app__(self) -> Starlette:
        """Build the app; Ray Serve calls this once."""
        from exitpoll.server.app import build_app

        return build_app(self.service)

    def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Change the default policy; one that is broken is refused at the start, and later leaves the old one.

        Args:
            config: The `user_config` of the deployment.
        """
        before = self.service.given
        try:
            given = config.get(POLICY)
            self.service.given = self._own if given is None else Policy.from_dict(given, "the policy of user_config")
            self.service.reload()
        except Exception as error:  # a broken update must not end a replica that works
            self.service.given = before
            if not self._is_configured:
                raise
            logger.warning("the policy stays as it was: %s", error)
        self._is_configured = True

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the work under way, by which Ray Serve chooses the number of replicas."""
        return {WORK: float(self.service.work)}

    def check_health(self) -> None:
        """Raise if the model makes no calls any more, so that Ray Serve replaces the replica."""
        if not self.service.is_live:
            raise RuntimeError("the model makes no calls any more")
