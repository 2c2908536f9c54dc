"""What all dialects ask for: texts in, results out; with limits, deadlines and accounting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from exitpoll.data.batching import Text, Tokens, lengths_of, pick
from exitpoll.data.splits import Texts
from exitpoll.decide.policy import Policy
from exitpoll.engine.arguments import to_text
from exitpoll.engine.arrivals import Step
from exitpoll.engine.costs import USUAL, CallCosts
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.server.audits import Audits
from exitpoll.server.metrics import OTHER, Metrics
from exitpoll.server.model_thread import TIME_OVER, Job, Result, deliver_to, post_to
from exitpoll.server.policies import DEFAULT, NamedPolicy, Policies, check_depth, load_policies
from exitpoll.server.refusals import RefusalError, invalid, overloaded, too_large, unavailable
from exitpoll.server.requests import Ask, Running
from exitpoll.server.runner import runner_for
from exitpoll.server.settings import ServerSettings
from exitpoll.server.shifts import Shifts
from exitpoll.server.tracing import Tracing
from exitpoll.server.worker_pool import without_weights

GRACE = 0.1  # seconds in which the model thread may say itself that time is over
INLINE = 10_000  # characters that are tokenized at once; more are tokenized in a thread
MOST_TOKENIZED = 4_000_000  # characters that wait for that thread, unless a single request has more
PROBE = "a " * 20_000  # a text that is longer than any model reads


class Service:
    """A model with its policies, and the requests under way; all methods but the model's run in one event loop."""

    def __init__(
        self,
        model: LoadedModel,
        *,
        folder: Path | None = None,
        policy: Policy | None = None,
        settings: ServerSettings | None = None,
        costs: CallCosts = USUAL,
        name: str = "model",
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare a service.

        Args:
            model: The model.
            folder: Where its policies are.
            policy: The default policy, in place of the folder's.
            settings: Its limits.
            costs: What calls of the model cost.
            name: The name of the model for clients.
            tracing: Where spans go.
        """
        self.settings, self.tracing = settings or ServerSettings(), tracing or Tracing()
        self.model = without_weights(model) if self.settings.workers else model
        self.name, self.folder, self.given = name, folder, policy
        self.policies: Policies = self._load_policies()
        self.layers = model.runtime.exit_layers[-1]
        self.max_tokens = self._longest()
        self.metrics = Metrics(self.layers, model.runtime.exit_layers)
        self._describe()
        self.runner = runner_for(self.model, costs, self.settings, self.metrics, self._on_step)
        of_audits = self.settings.audit, self.runner, self.metrics, self.policies, self.settings.audit_state
        self.audits = Audits(*of_audits, step_back=self.settings.step_back)
        self.shifts = Shifts(self.metrics, self.policies)
        self.is_leaving = self.is_draining = False  # not ready any more; refuses new requests
        self.work = self.texts_under_way = 0  # layer-tokens, texts
        self._rate = 0.0  # layer-tokens a second, of late
        self._busy = 0.0  # seconds in calls; the model thread adds to it, and a lost addition does not matter
        self._tokenizing = 0  # characters that the other thread tokenizes, or that wait for it
        self._tokenizer_thread = ThreadPoolExecutor(1, thread_name_prefix="exitpoll-tokenizer")

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the model thread, or the model processes."""
        self.runner.start()

    def stop(self) -> None:
        """End the threads and processes."""
        self.runner.stop()
        self.audits.stop()
        self.tracing.stop()
        self._tokenizer_thread.shutdown(wait=False)

    @property
    def is_live(self) -> bool:
        """Whether the model still makes calls that end."""
        return self.runner.is_alive and self.runner.stalled_for() < self.settings.stall_timeout

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted."""
        return self.is_live and self.runner.is_up and not self.is_leaving and not self.is_draining

    def reload(self) -> Policies:
        """Read the policies again; if one is broken, all stay as they are.

        Returns:
            The policies; requests under way keep those they began with.
        """
        loaded = self._load_policies()
        before, self.policies = self.policies, loaded
        self._describe()
        self.audits.watch(loaded)
        self.shifts.watch(loaded)
        for named in before.values():
            self.runner.forget(named.policy)
        return loaded

    def _describe(self) -> None:
        """Say in the metrics what is served."""
        self.metrics.name_policies(self.policies)
        default = self.policies[DEFAULT].policy.name
        self.metrics.describe(self.name, self.model.runtime.name, default, version("exitpoll"))

    def _load_policies(self) -> Policies:
        """Load the policies, and check that of the brownout."""
        policies, name = load_policies(self.model, self.folder, self.given), self.settings.brownout_policy
        if name is not None and (name not in policies or policies[name].guarantee is None):
            raise InputError(f"brownout '{name}' is not a policy with a guarantee", options=["brownout"])
        return policies

    # ---- requests ---------------------------------------------------------------------------------------------------

    def policy_named(self, name: str | None) -> NamedPolicy:
        """Return a policy, or refuse its name; without a name the default, or under load that of the brownout."""
        if name is None:
            name = self.audits.default
            if name == DEFAULT and self.work > self.settings.brownout_work:
                name = self.settings.brownout_policy
        named = self.policies.get(DEFAULT if name is None else name)
        if named is None:
            known = ", ".join(sorted(self.policies))
            raise invalid(f"there is no policy {name!r:.60}; the policies are: {known}")
        return named

    async def begin(self, ask: Ask) -> Running:
        """Check a request, and let its texts run.

        Args:
            ask: The request.

        Returns:
            The request under way; `finish` must be called for it.
        """
        if self.is_draining:
            raise unavailable("the server is ending")
        if ask.max_depth is not None and ask.max_depth >= self.layers:
            ask = replace(ask, max_depth=None)  # all layers: as without it
        named = self._checked_policy(ask)
        try:
            return await self._admit(ask, named)
        except RefusalError as refusal:
            outcome = "expired" if refusal.kind == "Timeout" else "refused"
            self.metrics.count_texts(named.name, outcome, len(ask.texts))
            raise

    def _checked_policy(self, ask: Ask) -> NamedPolicy:
        """Return the policy of a request, if it has any exit within the depth asked for."""
        try:
            named = self.policy_named(ask.policy)
            first = named.policy.asked(self.model.runtime.exit_layers)[0]
            if ask.max_depth is not None and ask.max_depth < first:
                raise invalid(f"max_depth {ask.max_depth} is below the first exit, after layer {first}")
            if ask.max_depth is not None:
                check_depth(self.model, named.policy, ask.max_depth)
        except RefusalError:
            self.metrics.count_texts(OTHER, "refused", len(ask.texts))
            raise
        return named

    async def _admit(self, ask: Ask, named: NamedPolicy) -> Running:
        """Check texts, tokenize them, and hand them to the model if there is room."""
        texts = self._checked_texts(ask.texts)
        before, begun = time.perf_counter(), time.monotonic()
        timeout = self.settings.timeout if ask.timeout is None else min(ask.timeout, self.settings.timeout)
        tokens = await self._tokenize(texts, timeout)
        lengths = lengths_of(tokens).tolist()
        if not ask.truncate and max(lengths) >= self.max_tokens:
            place = next(index for index, length in enumerate(lengths) if length >= self.max_tokens)
            raise too_large(f"text {place} reaches the {self.max_tokens} tokens that the model reads; set truncate")
        work = [length * self.layers for length in lengths]
        self._check_room(sum(work))
        results: asyncio.Queue = asyncio.Queue()
        deliver = deliver_to(asyncio.get_running_loop(), results)
        times = begun + timeout, ask.explain, None, self.settings.max_wait
        job = Job(tokens, named.policy, deliver, ask.max_depth, *times, is_traced=self.tracing.is_on)
        seconds = time.perf_counter() - before
        running = Running(job, results, named, ask.max_depth, texts, lengths, seconds, work, set(range(len(texts))))
        running.audited = {index for index in running.open if self.audits.is_drawn(named, ask.max_depth)}
        running.is_broken, running.trace = self.audits.is_broken(named.name), self.tracing.current()
        self.metrics.tokenize_seconds.observe(seconds)
        self._count_under_way(sum(work), len(texts))
        self.runner.submit(job)
        if self.policies.get(named.name) is not named:  # it was replaced while the texts were tokenized
            self.runner.forget(named.policy)
        return running

    def _checked_texts(self, given: Sequence[object]) -> list[Text]:
        """Check the texts of a request one by one."""
        if not given:
            raise RefusalError(400, "Empty", "there are no texts in the request")
        if len(given) > self.settings.max_texts:
            raise too_large(f"{len(given)} texts in a request are more than {self.settings.max_texts}")
        texts = []
        for index, text in enumerate(given):
            try:
                texts.append(to_text(f"text {index}", text))
                self.model.check_pairs(f"text {index}", pairs=isinstance(texts[-1], tuple))
            except InputError as error:
                raise invalid(str(error)) from error
            if isinstance(texts[-1], tuple) != isinstance(texts[0], tuple):
                raise invalid("some texts are pairs and some are not")
            characters = sum(map(len, [texts[-1]] if isinstance(texts[-1], str) else texts[-1]))
            if characters > self.settings.max_characters:
                limit = self.settings.max_characters
                raise too_large(f"text {index} has {characters} characters, more than {limit}")
        return texts

    def _check_room(self, work: int) -> None:
        """Refuse work for which there is no room."""
        limit = self.settings.max_queue
        if work > limit:
            raise too_large(f"the request is {work} layer-tokens of work, more than {limit} in all; send fewer texts")
        if self.work + work > limit:
            seconds = (self.work + work - limit) / self._rate if self._rate else 1.0
            raise overloaded("the server is overloaded; try again later", seconds)

    async def _tokenize(self, texts: list[Text], timeout: float) -> Tokens:
        """Tokenize, long texts in another thread; never in two threads at once, which tokenizers may not allow."""
        batch = Texts.of(texts)
        characters = 1 + sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts)
        try:
            if characters <= INLINE and not self._tokenizing:
                return self.model.tokenize(batch)
            return await asyncio.wait_for(self._tokenize_aside(batch, characters), timeout)
        except TimeoutError as error:
            raise RefusalError(504, "Timeout", TIME_OVER) from error
        except (InputError, ValueError, TypeError) as error:
            raise RefusalError(422, "Tokenizer", f"the texts cannot be tokenized: {error}") from error

    def _tokenize_aside(self, batch: Texts, characters: int) -> asyncio.Future[Tokens]:
        """Tokenize in the other thread, if not too much waits for it."""
        if self._tokenizing and self._tokenizing + characters > MOST_TOKENIZED:
            raise overloaded("too many long texts wait to be tokenized; try again later", 1.0)
        self._tokenizing += characters
        loop, future = asyncio.get_running_loop(), self._tokenizer_thread.submit(self.model.tokenize, batch)

        def end() -> None:
            self._tokenizing -= characters

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(end)

        future.add_done_callback(ended)  # not before the thread has done it, or will not begin with it
        return asyncio.wrap_future(future)

    def settle(self, running: Running, result: Result) -> None:
        """Account for a text that has been answered, or has not.

        Args:
            running: Its request.
            result: What became of it.
        """
        running.open.discard(result.index)
        self.tracing.text(running, result)
        self._count_under_way(-running.layer_tokens[result.index], -1)
        prediction = result.prediction
        if prediction is None:
            self.metrics.count_texts(running.policy.name, "expired" if result.expired else "failed")
            self.audits.dropped(running.policy.name, int(result.index in running.audited))
            return
        self.metrics.count_texts(running.policy.name, "answered")
        seconds = result.queue_seconds, result.model_seconds
        self.metrics.count_answer(prediction.depth, prediction.tokens, *seconds)
        if running.max_depth is None:
            self.shifts.count(running.policy.name, prediction)
        if result.index in running.audited:
            alone = pick(running.job.tokens, np.array([result.index]))
            self.audits.answered(running.policy, alone, prediction, post_to(asyncio.get_running_loop()))

    async def next_result(self, running: Running) -> Result | None:
        """Wait for the next text of a request.

        The model thread gives up texts whose time is over, but between calls only: this gives up the rest of a request
        even while a call hangs.

        Args:
            running: The request, of which texts are under way.

        Returns:
            What became of the text; None if the client has gone.
        """
        left = (running.job.deadline or 0.0) - time.monotonic() + GRACE
        try:
            return await asyncio.wait_for(running.results.get(), max(left, 0.0))
        except TimeoutError:
            index = min(running.open)
            self.finish(running, "expired")
            raise RefusalError(504, "Timeout", f"text {index}: {TIME_OVER}") from None

    def finish(self, running: Running, outcome: str = "cancelled") -> None:
        """Drop what is still under way of a request, if anything is.

        Args:
            running: The request.
            outcome: What to count its texts as.
        """
        if not running.open:
            return
        self.runner.cancel(running.job)
        self.metrics.count_texts(running.policy.name, outcome, len(running.open))
        self.audits.dropped(running.policy.name, len(running.open & running.audited))
        self._count_under_way(-sum(running.layer_tokens[index] for index in running.open), -len(running.open))
        running.open.clear()

    def _count_under_way(self, work: int, texts: int) -> None:
        """Count work that comes or goes."""
        self.work, self.texts_under_way = self.work + work, self.texts_under_way + texts
        self.metrics.queue_tokens.set(self.work)
        self.metrics.queue_texts.set(self.texts_under_way)
        if work < 0 and self._busy > 0:
            rate = -work / self._busy
            self._rate = rate if not self._rate else 0.9 * self._rate + 0.1 * rate
            self._busy = 0.0

    def _on_step(self, step: Step, seconds: float) -> None:
        """Count a call; in the thread of the runner."""
        self._busy += seconds / max(self.settings.workers, 1)
        self.metrics.count_call(step, seconds)

    def _longest(self) -> int:
        """Return how many tokens the model reads."""
        pairs = bool(self.model.training.get("pairs", False))
        text: Text = (PROBE, PROBE) if pairs else PROBE
        return len(self.model.tokenize(Texts.of([text]))["input_ids"][0])
