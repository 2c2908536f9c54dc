"""Metrics in the format of Prometheus: at most 500 series, whatever clients send and however many policies there are.

The first policies have series of their own, as many as there is room for beside the buckets and layers of the model;
all others are counted together, as `other`. So are requests beyond a number of pairs of route and status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from exitpoll.decide.shift import Difference
from exitpoll.engine.arrivals import Step

SECONDS = tuple(15e-6 * 1.5**power for power in range(35))  # as text-embeddings-inference
SIZES = tuple(2**power for power in range(14))
OUTCOMES = ("answered", "refused", "cancelled", "expired", "failed")
OTHER = "other"  # of routes and policies that do not exist, or have no series of their own
MOST_SERIES = 500
MOST_REQUESTS = 48  # pairs of route and status that have a series of their own
MOST_CODES = 16  # statuses of others
OF_A_POLICY = 21  # series: outcomes, audits, guarantee, shifts
OF_OTHERS = len(OUTCOMES) + 5  # series: outcomes, audits, whether any guarantee is broken, whether any is shifted
LEAST_POLICIES = 2  # that have series of their own, however many layers a model has


class Shown(Collector):
    """The series of a registry without times of their creation, which would be as many again."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Show a registry.

        Args:
            registry: What is shown.
        """
        self.registry = registry

    def collect(self) -> Iterator[Metric]:
        """Yield what there is."""
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class Metrics:
    """Counts and times of one server."""

    def __init__(self, layers: int, exit_layers: Sequence[int]) -> None:
        """Make the series.

        Args:
            layers: Of the model.
            exit_layers: The layers of its exits.
        """
        self.registry, self.layers, self.exit_layers = CollectorRegistry(), layers, exit_layers
        self.requests = self._counter("requests", "Requests, by route and status.", "route", "code")
        self.texts = self._counter("texts", "Texts, by policy and what became of them.", "policy", "outcome")
        self.request_seconds = self._histogram("request_seconds", "Time of a request.", SECONDS)
        self.tokenize_seconds = self._histogram("tokenize_seconds", "Time for tokenizing a request.", SECONDS)
        self.queue_seconds = self._histogram("queue_seconds", "Time of a text until its first call.", SECONDS)
        self.model_seconds = self._histogram("model_seconds", "Time of a text from its first call on.", SECONDS)
        self.depth = self._histogram("depth", "Layers run for a text.", tuple(map(float, exit_layers)))
        self.text_tokens = self._histogram("text_tokens", "Tokens of a text.", SIZES)
        self.calls = self._counter("calls", "Calls of the model, by the layer they began after.", "layer")
        self.call_seconds = self._histogram("call_seconds", "Time of a call.", SECONDS)
        self.call_texts = self._histogram("call_texts", "Texts in a call.", SIZES)
        self.call_tokens = self._histogram("call_tokens", "Tokens in a call, without padding.", SIZES)
        self.padding_ratio = self._histogram(
            "padding_ratio", "Share of padding in a call.", tuple(step / 10 for step in range(10))
        )
        self.layers_saved = self._counter("layers_saved", "Layers that texts did not run.")
        self.queue_texts = self._gauge("queue_texts", "Texts under way.")
        self.queue_tokens = self._gauge("queue_layer_tokens", "Work under way, in layer-tokens.")
        self.shadow_texts = self._counter("shadow_texts", "Texts compared with the full model.", "policy")
        self.shadow_disagreements = self._counter("shadow_disagreements", "Of these, answered otherwise.", "policy")
        self.shadow_dropped = self._counter("shadow_dropped", "Texts that were to be compared, and were not.", "policy")
        self.shadow_bound = self._gauge("shadow_bound", "Lower bound of the risk, valid at any time.", "policy")
        self.guarantee_limit = self._gauge("guarantee_limit", "The risk that is guaranteed.", "policy")
        self.guarantee_broken = self._gauge("guarantee_broken", "1 if the risk is above it.", "policy")
        self.worker_restarts = self._counter("worker_restarts", "Model processes that died, and were replaced.")
        self.steps_back = self._gauge("steps_back", "How many times the default policy became more cautious.")
        statistic = ("policy", "statistic")
        self.live_mean = self._gauge("live_mean", "Mean over the last window of texts.", *statistic)
        self.calibration_mean = self._gauge("calibration_mean", "Mean over the calibration texts.", *statistic)
        self.shift_distance = self._gauge("shift_distance", "Largest difference of cumulative shares.", *statistic)
        self.shifted = self._gauge("shifted", "1 if texts differ significantly from the calibration texts.", "policy")
        self.pool_texts = self._gauge("pool_texts", "Texts that wait behind a layer, half-way.", "layer")
        self.build_info = self._gauge("build_info", "What is served.", "model", "runtime", "policy", "version")
        self._requests: set[tuple[str, int]] = set()  # pairs with series of their own
        self._policies: set[str] = set()  # with series of their own
        self._broken: dict[str, bool] = {}  # of other policies
        self._shifted: dict[str, bool] = {}
        self.most_policies = self._room(len(exit_layers)) // OF_A_POLICY

    def _room(self, exits: int) -> int:
        """Return how many series there may be of policies that have their own."""
        fixed = sum(len(family.samples) for family in Shown(self.registry).collect())  # those without labels
        of_layers = 2 * (exits + 1)  # calls and pools
        room = MOST_SERIES - fixed - of_layers - 1 - MOST_REQUESTS - MOST_CODES - OF_OTHERS
        return max(room, LEAST_POLICIES * OF_A_POLICY)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        """Make a counter."""
        return Counter(f"exitpoll_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """Make a gauge."""
        return Gauge(f"exitpoll_{name}", about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: Sequence[float]) -> Histogram:
        """Make a histogram."""
        return Histogram(f"exitpoll_{name}", about, buckets=buckets, registry=self.registry)

    # ---- labels -----------------------------------------------------------------------------------------------------

    def name_policies(self, names: Iterable[str]) -> None:
        """Give policies series of their own, in their order, as long as there is room; those that have some keep them.

        Args:
            names: Of the policies.
        """
        for name in names:
            if len(self._policies) < self.most_policies:
                self._policies.add(name)
            self.count_texts(name, "answered", 0)

    def label_of(self, policy: str) -> str:
        """Return the label of a policy: its name, if it has series of its own."""
        return policy if policy in self._policies else OTHER

    def describe(self, model: str, runtime: str, policy: str, version: str) -> None:
        """Say what is served.

        Args:
            model: Its name.
            runtime: What runs it.
            policy: Strategy and settings of the default policy.
            version: Of this package.
        """
        self.build_info.clear()
        self.build_info.labels(model, runtime, policy, version).set(1)

    # ---- requests, texts and calls ----------------------------------------------------------------------------------

    def count_request(self, route: str, code: int, requests: int = 1) -> None:
        """Count requests by route and status."""
        if (route, code) not in self._requests:
            if len(self._requests) >= MOST_REQUESTS:
                route = OTHER
            elif route != OTHER:
                self._requests.add((route, code))
        self.requests.labels(route, code).inc(requests)

    def count_call(self, step: Step, seconds: float) -> None:
        """Count a call of the model."""
        if not step.numbers:
            return
        self.calls.labels(step.depth).inc()
        self.call_seconds.observe(seconds)
        self.call_texts.observe(len(step.numbers))
        self.call_tokens.observe(step.tokens)
        self.padding_ratio.observe(1 - step.tokens / step.padded)

    def count_texts(self, policy: str, outcome: str, texts: int = 1) -> None:
        """Count what became of texts."""
        self.texts.labels(self.label_of(policy), outcome).inc(texts)

    def count_answer(self, depth: int, tokens: int, queue_seconds: float, model_seconds: float) -> None:
        """Count a text that was answered."""
        self.depth.observe(depth)
        self.text_tokens.observe(tokens)
        self.queue_seconds.observe(max(queue_seconds, 0.0))
        self.model_seconds.observe(max(model_seconds, 0.0))
        self.layers_saved.inc(self.layers - depth)

    # ---- guarantees and shifts --------------------------------------------------------------------------------------

    def count_audit(self, policy: str, differing: int) -> None:
        """Count a text that was compared with the full model, and whether the answers differ."""
        label = self.label_of(policy)
        self.shadow_texts.labels(label).inc()
        self.shadow_disagreements.labels(label).inc(differing)

    def count_dropped(self, policy: str, texts: int) -> None:
        """Count texts that were to be compared, and were not."""
        self.shadow_dropped.labels(self.label_of(policy)).inc(texts)

    def show_guarantee(self, policy: str, bound: float, limit: float, *, is_broken: bool) -> None:
        """Set the gauges of a guarantee; of those without series of their own whether any is broken."""
        if self.label_of(policy) == OTHER:
            self._broken[policy] = is_broken
            self.guarantee_broken.labels(OTHER).set(int(any(self._broken.values())))
            return
        self.shadow_bound.labels(policy).set(bound)
        self.guarantee_limit.labels(policy).set(limit)
        self.guarantee_broken.labels(policy).set(int(is_broken))

    def forget_guarantee(self, policy: str) -> None:
        """Drop the gauges of a guarantee that is no longer watched."""
        if self.label_of(policy) == OTHER:
            self._broken.pop(policy, None)
            self.guarantee_broken.labels(OTHER).set(int(any(self._broken.values())))
            return
        for gauge in (self.shadow_bound, self.guarantee_limit, self.guarantee_broken):
            gauge.remove(policy)

    def show_shift(self, policy: str, compared: Iterable[Difference], *, is_shifted: bool) -> None:
        """Set the gauges of texts against calibration texts; of policies without series of their own only whether."""
        if self.label_of(policy) == OTHER:
            self._shifted[policy] = is_shifted
            self.shifted.labels(OTHER).set(int(any(self._shifted.values())))
            return
        for difference in compared:
            self.live_mean.labels(policy, difference.name).set(difference.here)
            self.calibration_mean.labels(policy, difference.name).set(difference.at_calibration)
            self.shift_distance.labels(policy, difference.name).set(difference.distance)
        self.shifted.labels(policy).set(int(is_shifted))

    def forget_shift(self, policy: str) -> None:
        """Drop the gauge of a policy whose texts are no longer compared."""
        if self.label_of(policy) == OTHER:
            self._shifted.pop(policy, None)
            self.shifted.labels(OTHER).set(int(any(self._shifted.values())))
            return
        self.shifted.remove(policy)

    def render(self, waiting: Mapping[int, int] | None = None) -> bytes:
        """Return all series in the text format.

        Args:
            waiting: Texts that wait half-way, by layer.
        """
        for layer in (0, *self.exit_layers[:-1]):
            self.pool_texts.labels(layer).set((waiting or {}).get(layer, 0))
        return generate_latest(Shown(self.registry))  # type: ignore[arg-type]
