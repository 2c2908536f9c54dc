"""Shifts: whether texts that are served differ from the calibration texts in depth, probability or length."""

from __future__ import annotations

import logging

from exitpoll.decide.shift import ShiftWatch
from exitpoll.engine.engine import Prediction
from exitpoll.server.metrics import Metrics
from exitpoll.server.policies import Policies

logger = logging.getLogger("exitpoll.server")


class Shifts:
    """A watch for every policy whose calibration kept a profile of its texts."""

    def __init__(self, metrics: Metrics, policies: Policies) -> None:
        """Begin.

        Args:
            metrics: Of the server.
            policies: The policies by name.
        """
        self.metrics, self.watches = metrics, dict[str, ShiftWatch]()
        self.watch(policies)

    def watch(self, policies: Policies) -> None:
        """Watch policies; one with the same profile keeps its texts.

        Args:
            policies: The policies by name.
        """
        before, self.watches = self.watches, {}
        for name, named in policies.items():
            certificate = named.policy.certificate
            profile = None if certificate is None else certificate.profile
            if profile is not None:
                known = before.get(name)
                self.watches[name] = known if known and known.profile == profile else ShiftWatch(profile)
                self.metrics.show_shift(name, (), is_shifted=self.watches[name].shift is not None)
        for name in before.keys() - self.watches.keys():
            self.metrics.forget_shift(name)

    def count(self, name: str, prediction: Prediction) -> None:
        """Count a text that was answered by a policy, and report the first significant difference.

        Args:
            name: Of the policy.
            prediction: The answer.
        """
        watch = self.watches.get(name)
        if watch is None or not prediction.is_finite:
            return
        was_known = watch.shift is not None
        if not watch.add(prediction.depth, prediction.probability, prediction.tokens):
            return
        self.metrics.show_shift(name, watch.compared, is_shifted=watch.shift is not None)
        if watch.shift is not None and not was_known:
            logger.warning("policy '%s': %s", name, watch.shift)
