"""Audits: some texts, drawn by a coin at arrival, also run to full depth, to watch the guarantees of the policies.

When the guarantee of the default policy is found to be broken, the default may step back to the next more cautious
policy, whose guarantee is watched in turn, and at last to the full model.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from exitpoll.data.batching import Tokens
from exitpoll.decide.metrics import predictions
from exitpoll.decide.monitor import Monitor
from exitpoll.engine.engine import Prediction
from exitpoll.engine.live import NEVER
from exitpoll.errors import InputError
from exitpoll.files import read_json, write_json
from exitpoll.server.metrics import Metrics
from exitpoll.server.model_thread import Job, Result
from exitpoll.server.policies import DEFAULT, FULL, NamedPolicy, Policies, steps_back
from exitpoll.server.runner import Runner

logger = logging.getLogger("exitpoll.server")
MOST_WAITING = 256  # texts that wait to be audited; others are dropped, and counted
SAVED_EVERY = 50  # audited texts

Post = Callable[[Callable[[Result], None], Result], None]


class Audits:
    """The monitors of the policies, and the texts that run to full depth for them."""

    def __init__(
        self,
        share: float,
        runner: Runner,
        metrics: Metrics,
        policies: Policies,
        state: Path | None = None,
        *,
        step_back: bool = False,
    ) -> None:
        """Begin, or go on where a state was saved.

        Args:
            share: The share of texts to audit.
            runner: Runs them, when nothing else is due.
            metrics: Of the server.
            policies: The policies by name.
            state: The file that keeps the counts over restarts.
            step_back: Whether the default becomes more cautious when its guarantee is broken.
        """
        self.share, self.runner, self.metrics, self.state = share, runner, metrics, state
        self.step_back, self.default = step_back, DEFAULT  # the policy of requests that name none
        self._waiting: dict[int, str] = {}  # policies of texts that run to full depth, by number
        self._next_number, self._coin = 0, random.Random()
        self.monitors: dict[str, Monitor] = {}
        self._keys: dict[str, str] = {}
        self._full = policies[FULL].policy
        self._saved = self._read_state()
        self.watch(policies)

    def watch(self, policies: Policies) -> None:
        """Watch the guarantees of policies; one that has not changed keeps its counts.

        Args:
            policies: The policies by name.
        """
        keys = {name: named.key for name, named in policies.items()}
        before = self.monitors.keys()
        kept = {name: monitor for name, monitor in self.monitors.items() if self._keys[name] == keys.get(name)}
        self._full, self.monitors, self._keys = policies[FULL].policy, {}, keys
        for name, named in policies.items():
            monitor = kept.get(name) or self._restored(name) or Monitor.of(named.policy)
            if monitor is None or not self.share:
                continue
            monitor.on_alarm = lambda broken, name=name: self._alarm(name, broken)
            self.monitors[name] = monitor
            self._show(name, monitor)
        for name in before - self.monitors.keys():
            self.metrics.forget_guarantee(name)
        self._steps = steps_back(policies)
        self._choose_default()

    @property
    def waiting(self) -> int:
        """How many texts run to full depth, or wait to."""
        return len(self._waiting)

    def is_broken(self, name: str) -> bool:
        """Return whether the guarantee of a policy was found to be broken."""
        return name in self.monitors and self.monitors[name].is_broken

    def _choose_default(self) -> None:
        """Take the first policy whose guarantee is not broken, if the default may step back."""
        before = self.default
        if self.step_back:
            self.default = next(name for name in self._steps if not self.is_broken(name))
        self.metrics.steps_back.set(self._steps.index(self.default))
        if self.default != before:
            logger.warning("requests that name no policy are now answered by policy '%s'", self.default)

    def is_drawn(self, policy: NamedPolicy, max_depth: int | None) -> bool:
        """Toss the coin for a text that arrives."""
        return policy.name in self.monitors and max_depth is None and self._coin.random() < self.share

    def answered(self, policy: NamedPolicy, tokens: Tokens, prediction: Prediction, post: Post) -> None:
        """Let a text that was drawn run to full depth, or compare it at once if it did already.

        If too many wait, all are dropped: to compare those that ran to full depth, which agree, would hide the others.

        Args:
            policy: That answered it, which may have been replaced since.
            tokens: The text alone.
            prediction: The answer that was given.
            post: Calls a function with a result in the event loop, from the model thread.
        """
        runtime, name, key = self.runner.model.runtime, policy.name, policy.key
        if self.waiting >= MOST_WAITING:
            self.dropped(name)
            return
        if prediction.depth == runtime.exit_layers[-1] and prediction.logits is not None and prediction.is_finite:
            logits = np.asarray(prediction.logits)[None]
            full = predictions(logits, runtime.problem_type)[0]
            self._compare(name, key, prediction.label, _named(full, prediction))
            return
        number, self._next_number = self._next_number, self._next_number + 1
        self._waiting[number] = name

        def compare(result: Result) -> None:
            if self._waiting.pop(number, None) is None:  # the server has ended, and counted it
                return
            if result.prediction is None:
                self.dropped(name)
            else:
                self._compare(name, key, prediction.label, result.prediction.label)

        self.runner.submit(Job(tokens, self._full, lambda result: post(compare, result), due=NEVER))

    def dropped(self, name: str, texts: int = 1) -> None:
        """Count texts that were drawn, and are not compared: whatever became of them.

        Args:
            name: Of the policy that they were drawn for.
            texts: How many.
        """
        if texts:
            self.metrics.count_dropped(name, texts)

    def stop(self) -> None:
        """Count what still waits as dropped, and save the counts."""
        for name in self._waiting.values():
            self.dropped(name)
        self._waiting.clear()
        self.save()

    def _compare(self, name: str, key: str, live: object, full: object) -> None:
        """Count a text."""
        monitor = self.monitors.get(name)
        if monitor is None or self._keys[name] != key:  # the policy was removed or replaced meanwhile
            self.dropped(name)
            return
        before = monitor.differing
        monitor.compare(live, full)
        self.metrics.count_audit(name, monitor.differing - before)
        self._show(name, monitor)
        if monitor.texts % SAVED_EVERY == 0:
            self.save()

    def _show(self, name: str, monitor: Monitor) -> None:
        """Set the gauges of a policy."""
        self.metrics.show_guarantee(name, monitor.lower_bound, monitor.limit, is_broken=monitor.is_broken)

    def _alarm(self, name: str, monitor: Monitor) -> None:
        """Report a broken guarantee."""
        logger.error(
            "the guarantee of policy '%s' is broken: answers differ on %d of %d texts, where at most %g %% may; the "
            "texts are probably not like the calibration texts: calibrate again",
            *(name, monitor.differing, monitor.texts, 100 * monitor.limit),
        )
        self._choose_default()
        self.save()

    # ---- state ------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the counts of all policies, if there is a file for them."""
        if self.state is None:
            return
        content = {name: {"policy": self._keys[name], **monitor.to_dict()} for name, monitor in self.monitors.items()}
        with suppress(OSError):  # a full disk must not stop answers
            write_json(self.state, content)

    def _read_state(self) -> dict[str, object]:
        """Read what was saved."""
        if self.state is None or not self.state.exists():
            return {}
        content = read_json(self.state)
        if content is None:
            raise InputError(f"'{self.state}' is not the state of audits; remove it or name another file")
        return content

    def _restored(self, name: str) -> Monitor | None:
        """Return the monitor of a policy that was saved, if the policy is the same."""
        content = self._saved.pop(name, None)
        if not isinstance(content, dict) or content.pop("policy", None) != self._keys[name]:
            return None
        return Monitor.from_dict(content)


def _named(full: np.ndarray, prediction: Prediction) -> object:
    """Return the full model's answer in the form of the prediction's label."""
    if isinstance(prediction.label, float):
        return float(full)
    if isinstance(prediction.label, tuple):
        return tuple(name for name, applies in zip(prediction.label_names, full, strict=True) if applies)
    return prediction.label_names[int(full)]
