"""From a trained folder to an exported one: stages, tokenizer and a policy of its own, whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exitpoll.data.progress import OnProgress, ignore, named
from exitpoll.data.splits import Texts
from exitpoll.decide.calibrate import calibrate_for
from exitpoll.decide.certificate import Guarantee
from exitpoll.decide.metrics import METRICS, predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import Trace
from exitpoll.engine.record import record, record_in_memory
from exitpoll.engine.runtime import LoadedModel
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.errors import InputError
from exitpoll.export.graphs import export, probe_texts
from exitpoll.export.merge import assemble
from exitpoll.export.quantize import TEXTS, quantize
from exitpoll.files import publish, restore, write_text
from exitpoll.models.card import model_card
from exitpoll.models.folder import CARD, MANIFEST, POLICY, TRAINING, check_free_for_model, read_training
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import load_tokenizer


@dataclass(frozen=True)
class Delivered:
    """What an export came to."""

    folder: Path
    runtime: str
    policy: Policy | None  # None if there was none, or none that would hold
    note: str | None = None  # why it could not be calibrated
    metric: str | None = None  # what follows is measured only on labelled texts
    texts: int = 0
    before: float | None = None  # the score of the full model
    after: float | None = None  # and of the full export
    int8: bool = False


def deliver(
    model: str,
    to: Path,
    *,
    int8: bool = False,
    texts: Texts | None = None,
    about: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> Delivered:
    """Export a trained folder; its policy goes with it, calibrated anew where there are texts.

    In float32 an export says what the model says to the last few bits, and so a policy holds for it as it is. In int8
    it does not: without texts to calibrate on, an int8 export has no policy.

    Args:
        model: The trained folder.
        to: The folder to write.
        int8: Whether to quantize weights and activations.
        texts: Calibration texts; the ranges of int8 activations are measured on them too, on random words without.
        about: What is known of these texts: data, split, metric.
        overwrite: Whether an older export may be replaced.
        on_progress: Called as the work goes on.

    Returns:
        What was written.
    """
    if not to.resolve().name:
        raise InputError(f"'{to}' is no folder to write an export to; name another")
    work = to.resolve().with_name(f"{to.resolve().name}.exporting")
    if work.exists() and not (work / "float32").exists():
        raise InputError(f"'{work}' is in the way, and not what an export that was cut off leaves; remove it")
    restore(work, to)
    _check_place(Path(model), to, overwrite=overwrite)
    source, show = _Source(model), on_progress
    shutil.rmtree(work, ignore_errors=True)
    try:
        exported, prepared = _write(source, work, texts, int8, show)
        delivered = Delivered(to, exported.runtime.name, source.policy, int8=int8)
        if texts is not None:
            delivered = _measure(source, exported, texts, about or {}, prepared, delivered, show)
        elif source.policy is not None:
            delivered = replace(delivered, policy=_carried(source.policy, exported))
        if delivered.policy is not None:
            delivered.policy.save(prepared / POLICY)
        write_text(prepared / CARD, model_card(prepared, f"{Path(model).resolve().name}, {exported.runtime.name}"))
        publish(work, prepared.name, to)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return delivered


def _check_place(model: Path, to: Path, *, overwrite: bool) -> None:
    """Refuse to write over anything but an older export, or from one."""
    if (model / MANIFEST).exists():
        raise InputError(f"'{model}' is an export already; name the trained folder")
    if to.resolve() == model.resolve() or to.resolve() in model.resolve().parents:
        raise InputError(f"'{to}' holds the model itself; choose another folder")
    if to.is_dir() and any(to.iterdir()) and not (to / MANIFEST).exists():
        raise InputError(f"'{to}' exists and is no export of exitpoll; choose another folder")
    if not to.parent.is_dir():
        raise InputError(f"there is no folder '{to.parent}' to write '{to.name}' to")
    check_free_for_model(to, overwrite=overwrite)


class _Source:
    """What is in a trained folder."""

    def __init__(self, folder: str) -> None:
        """Load it."""
        self.model, self.tokenizer = EarlyExitModel.from_pretrained(folder), load_tokenizer(folder)
        policy, summary = Path(folder) / POLICY, Path(folder) / TRAINING
        self.policy = Policy.load(policy) if policy.exists() else None
        self.summary = summary if read_training(Path(folder)) else None


def _write(source: _Source, work: Path, texts: Texts | None, int8: bool, show: OnProgress) -> tuple[LoadedModel, Path]:
    """Write the stages, and say where."""
    prepared = work / "float32"
    prepared.mkdir(parents=True)
    export(source.model, source.tokenizer, prepared, on_progress=named("exporting", show))
    if int8:
        whole, prepared = prepared, work / "int8"
        prepared.mkdir()
        some = Texts.of(probe_texts(source.tokenizer, TEXTS)) if texts is None else texts
        quantize(whole, prepared, some, on_progress=named("measuring ranges", show))
    if source.summary is not None:
        shutil.copy(source.summary, prepared)
    return assemble(prepared), prepared


def _measure(
    source: _Source,
    exported: LoadedModel,
    texts: Texts,
    about: Mapping[str, Any],
    prepared: Path,
    delivered: Delivered,
    show: OnProgress,
) -> Delivered:
    """Ask model and export about the calibration texts, and calibrate the policy anew."""
    model, path = loaded_model(source.model, source.tokenizer), prepared / "calibration.safetensors"
    before = record_in_memory(model, texts, about=about, on_progress=named("recording the model", show))
    after = record(exported, texts, path, about=about, on_progress=named("recording the export", show))
    try:
        delivered = replace(delivered, policy=_recalibrated(source.policy, after))
    except InputError as error:
        delivered = replace(delivered, policy=None, note=str(error))
    if after.labels is None:
        return delivered
    gold, metric = after.gold("a score"), after.metric
    scores = [METRICS[metric](gold, predictions(each.logits[:, -1], each.problem_type)) for each in (before, after)]
    return replace(delivered, metric=metric, texts=len(after), before=scores[0], after=scores[1])


def _recalibrated(policy: Policy | None, trace: Trace) -> Policy | None:
    """Calibrate for the same goal in the same way; what was never calibrated stays as it is."""
    if policy is None or policy.certificate is None:
        return policy
    goal, asked, metric = policy.certificate.goal, policy.certificate.asked, policy.certificate.metric
    strategy = asked if isinstance(asked, str) else Policy(**asked)
    if isinstance(goal, Guarantee) or metric not in METRICS:  # agreement with the full model is not a metric
        metric = None
    return calibrate_for(trace, goal, strategy, metric=metric)


def _carried(policy: Policy, exported: LoadedModel) -> Policy | None:
    """Let a policy go with an export in float32, or with any if it was never calibrated."""
    certificate = policy.certificate
    if certificate is None:
        return policy
    same = (exported.runtime.fingerprint, "torch float32")
    if exported.runtime.name != "onnx float32" or (certificate.source.fingerprint, certificate.source.runtime) != same:
        return None
    source = replace(certificate.source, runtime=exported.runtime.name, carried_from=certificate.source.runtime)
    return replace(policy, certificate=replace(certificate, source=source))
