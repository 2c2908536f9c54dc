"""The steps of an adoption: every one leaves a file, so that an interrupted job continues behind the last of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import set_seed

from exitpoll.adoption.answers import check_answers, perfect_speedup
from exitpoll.adoption.outcome import INT8, Adapting, Adopted, Choice, InRuntime, fastest
from exitpoll.adoption.parts import Parts
from exitpoll.adoption.settings import AdoptSettings
from exitpoll.benchmark.timing import ALL_LAYERS, Benchmark, benchmark, load_in_runtimes
from exitpoll.data.progress import OnProgress, named
from exitpoll.data.splits import AGREEMENT, Splits, Texts
from exitpoll.decide.calibrate import Exits, calibrate_for
from exitpoll.decide.certificate import Guarantee
from exitpoll.decide.guarantee import certify_full_depth, losses_of
from exitpoll.decide.metrics import REGRESSION, predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.proof import at_confidence, for_the_better_of_two
from exitpoll.decide.trace import Trace
from exitpoll.engine.loading import load_model
from exitpoll.engine.record import record
from exitpoll.engine.runtime import LoadedModel
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.errors import InputError
from exitpoll.export.export import export_model
from exitpoll.files import publish, read_json, write_json, write_text
from exitpoll.models.card import model_card
from exitpoll.models.folder import ADOPTED, CARD, POLICY, REPORT, RUNTIMES, is_model_folder
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import load_tokenizer
from exitpoll.report import html
from exitpoll.training.settings import TrainingSettings
from exitpoll.training.train import train

# In the work folder; "adapted" is the model whose encoder was trained too.
MODEL, ADAPTED, ADAPTING, BENCH, SECONDS = "model", "adapted", "adapting.json", "bench.json", "seconds.json"
TIMED = 128  # texts that all runtimes are timed on
BATCH_SIZES = (1, 32)
ROUNDS = 3
ASKED = 300  # texts on which the classifier must give more than one answer
TOLERANCE = 0.1  # of the standard deviation of the classifier's values, for regression
# The best of those that experiments/heads.py compares: cross-entropy with the classifier's answers, and attention. The
# output of the encoder is computed once, so epochs cost little.
TEACHING, POOLING = TrainingSettings(objective="relevancy", epochs=10, batch_size=64, logs_per_epoch=1), "attention"
ADAPTATION = TrainingSettings(schedule="adapt", epochs=3, learning_rate=2e-5, logs_per_epoch=1)
EXIT_ZERO = "ngrams"  # what the head before the first layer reads; where it does not pay, it is not asked


def is_met(policy: Policy) -> bool:
    """Return whether the guarantee that a policy was calibrated for holds."""
    return policy.certificate is not None and policy.certificate.met


@dataclass(frozen=True)
class Adoption:
    """One adoption; every step leaves a file, and is skipped where that exists."""

    classifier: str
    parts: Parts
    left_over: int  # texts that are in no part
    settings: AdoptSettings
    work: Path
    out: Path
    on_step: Callable[[str], None]
    on_progress: OnProgress

    def run(self) -> Adopted:
        """Run all steps."""
        started, before = time.perf_counter(), (read_json(self.work / SECONDS) or {}).get("seconds", 0.0)
        try:
            self._teach()
            if self.settings.adapt:
                self._adapt()
            policies = self._certify_runtimes()
            timed = self._time()
            choice = self._choose_runtime(policies, timed)
        finally:
            seconds = before + time.perf_counter() - started
            write_json(self.work / SECONDS, {"seconds": round(seconds, 1)})
        adopted = self._outcome(policies, choice.runtime, timed, seconds)
        write_json(self.model / ADOPTED, adopted.to_dict())
        write_text(self.model / CARD, model_card(self.model, self.out.name))
        self._report(policies["torch"], timed)
        publish(self.work, self.model.name, self.out)
        return adopted

    @property
    def model(self) -> Path:
        """The model folder while it is made."""
        return self.work / (ADAPTED if self._adapting.pays else MODEL)

    @property
    def _adapting(self) -> Adapting:
        """What training the encoder too gained, once that is known."""
        return Adapting(**(read_json(self.work / ADAPTING) or {}))

    # ---- heads ------------------------------------------------------------------------------------------------------

    def _teach(self) -> None:
        """Train heads on the classifier's answers; a model folder of exitpoll has heads already."""
        if self.model.exists():
            return
        if is_model_folder(Path(self.classifier)):
            check_answers(load_model(self.classifier, device="cpu"), self._sample("teach", ASKED))
            self._copy_trained()
            return
        self.on_step("teach the heads what the classifier answers")
        set_seed(self.settings.seed)  # for the initial weights of the heads
        model = EarlyExitModel.from_classifier(self.classifier, pooling=POOLING, exit_zero=EXIT_ZERO)
        check_answers(loaded_model(model, load_tokenizer(self.classifier)), self._sample("teach", ASKED))
        self._train(model, self.model, TEACHING)

    def _train(self, model: EarlyExitModel, out: Path, settings: TrainingSettings) -> None:
        """Train a model on the texts that teach; those that choose select the checkpoint."""
        splits = Splits(
            train=self.parts.teach,
            calibration=self.parts.choose,
            test=self.parts.certify,
            label_names=list(model.config.id2label.values()),
            problem_type=str(model.config.problem_type),
            metric=AGREEMENT,
        )
        settings, tokenizer = replace(settings, seed=self.settings.seed), load_tokenizer(self.classifier)
        train(model, tokenizer, splits, out, settings, resume=True, on_progress=self.on_progress)

    def _adapt(self) -> None:
        """Train the encoder too, and keep that if more texts then leave early, by the texts that choose."""
        if (self.work / ADAPTING).exists():
            return
        frozen, adapted = self.work / MODEL, self.work / ADAPTED
        if not adapted.exists():
            self.on_step("train the encoder too")
            self._train(EarlyExitModel.from_pretrained(frozen), adapted, ADAPTATION)
        before, after = self._speedup_on_choose(frozen), self._speedup_on_choose(adapted)
        write_json(self.work / ADAPTING, asdict(Adapting(before, after, self._changed_by(adapted))))

    def _changed_by(self, folder: Path) -> float:
        """Return the share of answers at full depth that are no longer the original's, on the texts that choose."""
        trace = self._record(folder, "choose")
        guarantee = replace(self.settings.guarantee, tolerance=self._tolerance(trace))
        now, before = (
            predictions(logits, trace.problem_type) for logits in (trace.logits[:, -1], self._original("choose"))
        )
        return round(float(losses_of(trace, now, before, guarantee).mean()), 5)

    def _speedup_on_choose(self, folder: Path) -> float:
        """Return the speed-up that a model as likely as not keeps the guarantee at, by the texts that choose."""
        trace = replace(self._record(folder, "choose"), reference=self._original("choose"))
        likely = replace(self.settings.guarantee, tolerance=self._tolerance(trace), confidence=0.5)
        certificate = calibrate_for(trace, likely).certificate
        assert certificate is not None
        return round(certificate.speedup, 3)

    def _sample(self, part: str, size: int) -> Texts:
        """Return some texts of a part, drawn at random: the texts of a part are in the order of the file."""
        texts: Texts = getattr(self.parts, part)
        rows = np.random.default_rng(self.settings.seed).permutation(len(texts))[:size]
        return texts.select(np.sort(rows))

    def _copy_trained(self) -> None:
        """Copy a trained folder without its policy and its exports, which are made anew."""
        aside = self.work / "copied"
        shutil.rmtree(aside, ignore_errors=True)
        left_out = shutil.ignore_patterns(POLICY, REPORT, ADOPTED, *RUNTIMES)
        shutil.copytree(self.classifier, aside, ignore=left_out)
        aside.rename(self.model)

    # ---- certificates -----------------------------------------------------------------------------------------------

    def _record(self, folder: Path, part: str, kind: str = "torch", loaded: LoadedModel | None = None) -> Trace:
        """Return what every exit says about a part of the texts, recorded now or before."""
        path = self.work / f"{folder.name}.{kind}.{part}.safetensors"
        if not path.exists():
            report = named(f"{kind}: recording what will {part}", self.on_progress)
            about = {"data": "texts", "split": part}
            loaded = loaded or load_model(folder, device="cpu")
            record(loaded, getattr(self.parts, part), path, about=about, on_progress=report)
        trace = Trace.load(path)
        if is_model_folder(Path(self.classifier)):  # its heads were trained elsewhere: not on texts that certify here
            return trace
        # Texts repeat in traffic: one that taught the heads may certify too, as it may come again.
        return replace(trace, about={name: value for name, value in trace.about.items() if name != "overlap"})

    def _original(self, part: str) -> NDArray:
        """Return the original classifier's logits, (texts, classes): those of the last exit of the frozen model."""
        return np.asarray(self._record(self.work / MODEL, part).logits[:, -1])

    def _certify_runtimes(self) -> dict[str, Policy]:
        """Certify the exports, and torch.

        Each certificate may be wrong with a share of the probability allowed, so there must not be more of them than
        `_certified` counts: float32 has one policy, in torch and ONNX Runtime, whose logits are the same.
        """
        exported = {kind: self._export(kind) for kind in self._exports}
        path = self.model / POLICY
        if not path.exists():
            loaded = load_model(self.model, device="cpu")
            (self._in_torch(exported["onnx"], loaded) if "onnx" in exported else self._choose(loaded)).save(path)
        return {"torch": Policy.load(path), **exported}

    def _choose(self, loaded: LoadedModel) -> Policy:
        """Record, choose and certify in torch."""
        self.on_step("choose and certify a policy")
        return self._certified("torch", loaded)

    @staticmethod
    def _in_torch(policy: Policy, loaded: LoadedModel) -> Policy:
        """Return the policy of the float32 export for torch."""
        assert policy.certificate is not None
        source = policy.certificate.source.carried_to(loaded.runtime.fingerprint, loaded.runtime.name)
        return replace(policy, certificate=replace(policy.certificate, source=source))

    def _certified(self, kind: str, loaded: LoadedModel) -> Policy:
        """Record what chooses and what certifies, and do both.

        All layers are certified first, which in float32 is certain, and exits only if these pass: two tests in an order
        fixed beforehand, of which the second counts only where the first passes, are wrong no more often than one.
        """
        search, proof = (self._against_original(part, kind, loaded) for part in ("choose", "certify"))
        exits: Exits = "all" if search.problem_type == REGRESSION else "auto"
        tested = self._tested_guarantee(search)
        policy, full = calibrate_for(proof, tested, exits=exits, search=search), certify_full_depth(proof, tested)
        if not (is_met(policy) and is_met(full)) and not self._adapting.pays:
            policy = full
        return self._stated(policy)

    def _tested_guarantee(self, trace: Trace) -> Guarantee:
        """Return the guarantee that both float32 and int8 must keep, so that the faster keeps the given one."""
        guarantee = replace(self.settings.guarantee, tolerance=self._tolerance(trace))
        return for_the_better_of_two(guarantee) if INT8 in self._exports else guarantee

    def _stated(self, policy: Policy) -> Policy:
        """State the given guarantee in the certificate of a policy."""
        if INT8 not in self._exports:  # there is one certificate: that of float32
            return policy
        assert policy.certificate is not None
        tested = policy.certificate.goal
        assert isinstance(tested, Guarantee)
        return at_confidence(policy, replace(tested, confidence=self.settings.confidence))

    def _against_original(self, part: str, kind: str, loaded: LoadedModel | None = None) -> Trace:
        """Return what every exit says about a part of the texts, beside what the original classifier says."""
        return replace(self._record(self.model, part, kind, loaded), reference=self._original(part))

    def _tolerance(self, trace: Trace) -> float | None:
        """Return how far apart values may be, for regression."""
        if trace.problem_type != REGRESSION:
            return None
        if self.settings.tolerance is not None:
            return self.settings.tolerance
        return round(TOLERANCE * float(np.std(self._original("choose"))), 6)

    # ---- runtimes ---------------------------------------------------------------------------------------------------

    @property
    def _exports(self) -> list[str]:
        """The runtimes to export for: those that were named, or all if their packages are installed."""
        if self.settings.runtimes is not None:
            return [kind for kind in RUNTIMES[1:] if kind in self.settings.runtimes]
        installed = all(find_spec(package) is not None for package in ("onnx", "onnxruntime", "onnxscript"))
        return list(RUNTIMES[1:]) if installed else []

    def _export(self, kind: str) -> Policy:
        """Export the model, and certify the export against the original classifier."""
        folder = self.model / kind
        if not folder.exists():
            self.on_step(f"export for {kind}, and certify that")
            self._write_export(kind, lambda loaded: self._certified(kind, loaded))
        return Policy.load(folder / POLICY)

    def _write_export(self, kind: str, policy_for: Callable[[LoadedModel], Policy]) -> None:
        """Export the model with a policy."""
        export_model(
            self.model,
            self.model / kind,
            int8=kind == INT8,
            texts=self.parts.choose,
            policy_for=policy_for,
            device="cpu",
            overwrite=True,
            on_progress=self.on_progress,
        )

    def _time(self) -> Benchmark:
        """Time all runtimes on some of the texts."""
        path = self.work / BENCH
        if not path.exists():
            self.on_step("time every runtime against plain transformers")
            texts = list(self._sample("certify", TIMED))
            models = load_in_runtimes(self.model)
            timed = benchmark(
                models, texts, batch_sizes=BATCH_SIZES, rounds=ROUNDS, ways=ALL_LAYERS, on_progress=self.on_progress
            )
            fingerprints = {model.kind: model.loaded.runtime.fingerprint for model in models}
            about = {"fingerprints": fingerprints, "data": "texts", "split": "certify"}
            write_json(path, replace(timed, about=about).to_dict())
        return Benchmark.load(path)

    def _choose_runtime(self, policies: dict[str, Policy], timed: Benchmark) -> Choice:
        """Return the fastest way that keeps the guarantee; if that runs all layers, change the policy accordingly."""
        in_runtimes = [InRuntime.of(kind, policy) for kind, policy in policies.items()]
        choice = fastest(in_runtimes, timed, same_full_depth=not self._adapting.pays)
        if not choice.exits and not self._adapting.pays and not self._runs_all_layers(policies[choice.runtime]):
            policies[choice.runtime] = self._without_exits(choice.runtime)
        return choice

    @staticmethod
    def _runs_all_layers(policy: Policy) -> bool:
        """Return whether a policy is certified and never exits early."""
        return policy.threshold is None and is_met(policy)

    def _without_exits(self, kind: str) -> Policy:
        """Give a runtime the policy that never exits early, where exits cost more time than they save."""
        self.on_step(f"run all layers in {kind}: exits cost more time than they save")
        proof = self._against_original("certify", kind)
        policy = self._stated(certify_full_depth(proof, self._tested_guarantee(proof)))
        if kind == "torch":
            policy.save(self.model / POLICY)
        else:
            self._write_export(kind, lambda loaded: policy)
        return policy

    # ---- result -----------------------------------------------------------------------------------------------------

    def _outcome(self, policies: dict[str, Policy], runtime: str, timed: Benchmark, seconds: float) -> Adopted:
        """Collect the result."""
        in_runtimes = [InRuntime.of(kind, policy) for kind, policy in policies.items()]
        certificate = policies["torch"].certificate
        assert certificate is not None
        return Adopted(
            folder=self.out,
            classifier=Path(self.classifier).name if Path(self.classifier).exists() else self.classifier,
            guarantee=str(certificate.goal),
            texts=self.parts.sizes,
            runtime=runtime,
            in_runtimes=in_runtimes,
            gains=timed.gains,
            oracle_speedup=round(self._oracle(), 3),
            adapting=self._adapting if self.settings.adapt else None,
            seconds=round(seconds, 1),
            notes=self._notes,
        )

    @property
    def _notes(self) -> list[str]:
        """Say how many texts were left over."""
        return [f"{self.left_over} texts were not used: more would change little"] if self.left_over else []

    def _oracle(self) -> float:
        """Return the speed-up of a perfect choice."""
        trace = self._record(self.model, "certify")
        return perfect_speedup(trace, self._tolerance(trace))

    def _report(self, policy: Policy, timed: Benchmark) -> None:
        """Write the report on the texts that certify, where its packages are installed."""
        if not self.settings.report or (self.model / REPORT).exists():
            return
        try:
            html.check_requirements()
        except InputError as error:
            self.on_step(f"no report: {error}")
            return
        self.on_step("write the report")
        trace = replace(self._record(self.model, "certify"), reference=self._original("certify"))
        loaded = load_model(self.model, device="cpu")
        content = html.build_report(
            self.out.name,
            loaded.label_names,
            policy,
            trace,
            list(self.parts.certify),
            benchmark=timed,
            training=loaded.training,
        )
        html.write_report(content, self.model / REPORT)
