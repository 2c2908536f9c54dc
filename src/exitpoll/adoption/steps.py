"""The steps of an adoption: every one leaves a file, so that an interrupted job continues behind the last of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exitpoll.adoption.outcome import Adopted, InRuntime, fastest
from exitpoll.adoption.parts import Parts
from exitpoll.adoption.settings import AdoptSettings
from exitpoll.benchmark.timing import ALL_LAYERS, Benchmark, benchmark, load_in_runtimes
from exitpoll.data.progress import OnProgress, named
from exitpoll.data.splits import AGREEMENT, Splits, Texts
from exitpoll.decide.analysis import consistency_oracle
from exitpoll.decide.calibrate import Exits, calibrate_for
from exitpoll.decide.decisions import speedup_at
from exitpoll.decide.metrics import DEFAULT_METRICS, REGRESSION, predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.proof import at_confidence, for_the_better_of_two
from exitpoll.decide.scoring import full_answers
from exitpoll.decide.trace import Trace
from exitpoll.engine.loading import load_model
from exitpoll.engine.record import record, record_in_memory
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

MODEL, BENCH, SECONDS = "model", "bench.json", "seconds.json"  # in the work folder
TIMED = 128  # texts that all runtimes are timed on
BATCH_SIZES = (1, 32)
ROUNDS = 3
ASKED = 300  # texts on which the classifier must give more than one answer
TOLERANCE = 0.1  # of the standard deviation of the classifier's values, for regression
EPOCHS = 10  # the output of the encoder is computed once, so epochs cost little
ADAPT_EPOCHS = 3
# The best of those that experiments/heads.py compares: cross-entropy with the classifier's answers, and attention.
OBJECTIVE, POOLING = "relevancy", "attention"
EXIT_ZERO = "ngrams"  # what the head before the first layer reads; where it does not pay, it is not asked


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
            policies = {"torch": self._certify_torch()}
            for kind in self._exports:
                policies[kind] = self._export(kind)
            timed = self._time()
        finally:
            seconds = before + time.perf_counter() - started
            write_json(self.work / SECONDS, {"seconds": round(seconds, 1)})
        adopted = self._outcome(policies, timed, seconds)
        write_json(self.model / ADOPTED, adopted.to_dict())
        write_text(self.model / CARD, model_card(self.model, self.out.name))
        self._report(policies["torch"], timed)
        publish(self.work, MODEL, self.out)
        return adopted

    @property
    def model(self) -> Path:
        """The model folder while it is made."""
        return self.work / MODEL

    # ---- heads ------------------------------------------------------------------------------------------------------

    def _teach(self) -> None:
        """Train heads on the classifier's answers; a model folder of exitpoll has heads already."""
        if self.model.exists():
            return
        if is_model_folder(Path(self.classifier)):
            self._copy_trained()
            return
        self.on_step("teach the heads what the classifier answers")
        model = EarlyExitModel.from_classifier(self.classifier, pooling=POOLING, exit_zero=EXIT_ZERO)
        tokenizer = load_tokenizer(self.classifier)
        problem_type = str(model.config.problem_type)
        original = loaded_model(model, tokenizer)
        self._check_answers(original, problem_type)
        parts, adapt = self._unlabelled(), self.settings.adapt
        if adapt:
            self._record_original(original)
            parts = {
                name: replace(texts, labels=predictions(self._original(name), problem_type))
                for name, texts in parts.items()
            }
        splits = Splits(
            train=parts["teach"],
            calibration=parts["choose"],
            test=parts["certify"],
            label_names=list(model.config.id2label.values()),
            problem_type=problem_type,
            metric=DEFAULT_METRICS[problem_type] if adapt else AGREEMENT,
        )
        train(model, tokenizer, splits, self.model, self._training(), resume=True, on_progress=self.on_progress)

    def _training(self) -> TrainingSettings:
        """Return how heads, and the encoder if that is to be adapted, are trained."""
        if self.settings.adapt:
            return TrainingSettings(schedule="joint", epochs=ADAPT_EPOCHS, logs_per_epoch=1, seed=self.settings.seed)
        return TrainingSettings(
            objective=OBJECTIVE, epochs=EPOCHS, batch_size=64, logs_per_epoch=1, seed=self.settings.seed
        )

    def _copy_trained(self) -> None:
        """Copy a trained folder without its policy and its exports, which are made anew."""
        if self.settings.adapt:
            raise InputError(f"'{self.classifier}' is a model folder of exitpoll: adapt is for other classifiers")
        aside = self.work / "copied"
        shutil.rmtree(aside, ignore_errors=True)
        left_out = shutil.ignore_patterns(POLICY, REPORT, ADOPTED, *RUNTIMES)
        shutil.copytree(self.classifier, aside, ignore=left_out)
        aside.rename(self.model)

    def _unlabelled(self) -> dict[str, Texts]:
        """Return the parts without labels, which the heads do not learn: the classifier's answers teach better."""
        return {name: replace(getattr(self.parts, name), labels=None) for name in self.parts.sizes}

    def _check_answers(self, original: LoadedModel, problem_type: str) -> None:
        """Refuse texts to which the classifier gives one answer only."""
        sample = self.parts.teach.select(np.arange(min(ASKED, len(self.parts.teach))))
        answers = full_answers(record_in_memory(original, replace(sample, labels=None)))
        if len(np.unique(answers, axis=0)) > 1:
            return
        label = answers[0] if problem_type == REGRESSION else original.label_names[int(np.ravel(answers[0])[0])]
        raise InputError(
            f"the classifier answers '{label}' to all of {len(answers)} texts: nothing could be learned or certified "
            "from them; give texts like those that it will see"
        )

    def _record_original(self, original: LoadedModel) -> None:
        """Keep the original's logits, before its encoder is trained."""
        for name, texts in self._unlabelled().items():
            path = self.work / f"original.{name}.npy"
            if not path.exists():
                trace = record_in_memory(original, texts, on_progress=named(f"original, {name}", self.on_progress))
                aside = path.with_name("aside.npy")
                np.save(aside, trace.logits[:, -1], allow_pickle=False)
                aside.rename(path)

    # ---- certificates -----------------------------------------------------------------------------------------------

    def _original(self, part: str) -> NDArray:
        """Return the original classifier's logits, (texts, classes)."""
        path = self.work / f"original.{part}.npy"
        if path.exists():
            return np.load(path, allow_pickle=False)
        return np.asarray(Trace.load(self.work / f"torch.{part}.safetensors").logits[:, -1])

    def _certify_torch(self) -> Policy:
        """Record, choose and certify in torch."""
        path = self.model / POLICY
        if not path.exists():
            self.on_step("choose and certify a policy")
            self._certified("torch", load_model(self.model, device="cpu")).save(path)
        return Policy.load(path)

    def _certified(self, kind: str, loaded: LoadedModel) -> Policy:
        """Record what chooses and what certifies, and do both."""
        traces = []
        for part in ("choose", "certify"):
            path = self.work / f"{kind}.{part}.safetensors"
            report = named(f"{kind}: recording what will {part}", self.on_progress)
            if not path.exists():
                about = {"data": "texts", "split": part}
                record(loaded, getattr(self.parts, part), path, about=about, on_progress=report)
            trace = Trace.load(path)
            # Texts repeat in traffic: one that taught the heads may certify too, as it may come again.
            about = {name: value for name, value in trace.about.items() if name != "overlap"}
            traces.append(replace(trace, about=about, reference=self._original(part)))
        search, proof = traces
        guarantee = replace(self.settings.guarantee, tolerance=self._tolerance(search))
        exits: Exits = "all" if search.problem_type == REGRESSION else "auto"
        if "onnx-int8" not in self._exports:  # float32 gives the same answers in torch and ONNX Runtime
            return calibrate_for(proof, guarantee, exits=exits, search=search)
        policy = calibrate_for(proof, for_the_better_of_two(guarantee), exits=exits, search=search)
        return at_confidence(policy, guarantee)

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
            export_model(
                self.model,
                folder,
                int8=kind == "onnx-int8",
                texts=replace(self.parts.choose, labels=None),
                policy_for=lambda loaded: self._certified(kind, loaded),
                device="cpu",
                on_progress=self.on_progress,
            )
        return Policy.load(folder / POLICY)

    def _time(self) -> Benchmark:
        """Time all runtimes on some of the texts."""
        path = self.work / BENCH
        if not path.exists():
            self.on_step("time every runtime against plain transformers")
            texts = list(self.parts.certify)[:TIMED]
            models = load_in_runtimes(self.model)
            timed = benchmark(
                models, texts, batch_sizes=BATCH_SIZES, rounds=ROUNDS, ways=ALL_LAYERS, on_progress=self.on_progress
            )
            fingerprints = {model.kind: model.loaded.runtime.fingerprint for model in models}
            about = {"fingerprints": fingerprints, "data": "texts", "split": "certify"}
            write_json(path, replace(timed, about=about).to_dict())
        return Benchmark.load(path)

    # ---- result -----------------------------------------------------------------------------------------------------

    def _outcome(self, policies: dict[str, Policy], timed: Benchmark, seconds: float) -> Adopted:
        """Collect the result."""
        in_runtimes = [InRuntime.of(kind, policy) for kind, policy in policies.items()]
        certificate = policies["torch"].certificate
        assert certificate is not None
        return Adopted(
            folder=self.out,
            classifier=Path(self.classifier).name if Path(self.classifier).exists() else self.classifier,
            guarantee=str(certificate.goal),
            texts=self.parts.sizes,
            runtime=fastest(in_runtimes, timed),
            in_runtimes=in_runtimes,
            gains=timed.gains,
            oracle_speedup=round(self._oracle, 3),
            adapted=self.settings.adapt,
            seconds=round(seconds, 1),
            notes=self._notes,
        )

    @property
    def _notes(self) -> list[str]:
        """Say how many texts were left over."""
        return [f"{self.left_over} texts were not used: more would change little"] if self.left_over else []

    @property
    def _oracle(self) -> float:
        """Return the speed-up of a perfect choice: the first exit from which on all answer as the last one."""
        trace = Trace.load(self.work / "torch.certify.safetensors")
        if trace.problem_type != REGRESSION:
            return consistency_oracle(trace).speedup
        values = np.asarray(trace.logits)[:, :, 0]
        tolerance = self._tolerance(trace)
        assert tolerance is not None
        agrees = np.abs(values - values[:, -1:]) <= tolerance
        for_good = np.logical_and.accumulate(agrees[:, ::-1], axis=1)[:, ::-1]
        return float(speedup_at(np.asarray(trace.exit_layers)[for_good.argmax(axis=1)], trace.exit_layers))

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
        trace = replace(Trace.load(self.work / "torch.certify.safetensors"), reference=self._original("certify"))
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
