"""Metrics in the format of Prometheus; the number of series does not depend on what clients send."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from exitpoll.engine.arrivals import Step

SECONDS = tuple(15e-6 * 1.5**power for power in range(35))  # as text-embeddings-inference
SIZES = tuple(2**power for power in range(14))
OUTCOMES = ("answered", "refused", "cancelled", "expired", "failed")
OTHER = "other"  # of routes and policies that do not exist


class Metrics:
    """Counts and times of one server."""

    def __init__(self, layers: int, exit_layers: Sequence[int]) -> None:
        """Make the series.

        Args:
            layers: Of the model.
            exit_layers: The layers of its exits.
        """
        self.registry, self.layers = CollectorRegistry(), layers
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
        self.build_info = self._gauge("build_info", "What is served.", "model", "runtime", "version")

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        """Make a counter."""
        return Counter(f"exitpoll_{name}", about, labels, registry=self.registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        """Make a gauge."""
        return Gauge(f"exitpoll_{name}", about, labels, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: Sequence[float]) -> Histogram:
        """Make a histogram."""
        return Histogram(f"exitpoll_{name}", about, buckets=buckets, registry=self.registry)

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
        self.texts.labels(policy, outcome).inc(texts)

    def count_answer(self, depth: int, tokens: int, queue_seconds: float, model_seconds: float) -> None:
        """Count a text that was answered."""
        self.depth.observe(depth)
        self.text_tokens.observe(tokens)
        self.queue_seconds.observe(max(queue_seconds, 0.0))
        self.model_seconds.observe(max(model_seconds, 0.0))
        self.layers_saved.inc(self.layers - depth)

    def render(self) -> bytes:
        """Return all series in the text format."""
        return generate_latest(self.registry)
