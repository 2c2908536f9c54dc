"""Export a trained model folder: ONNX graphs, tokenizer and policy, written atomically."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from exitpoll.data.progress import OnProgress, ignore, named
from exitpoll.data.splits import Texts
from exitpoll.decide.calibrate import MOST_TRAINED_ON, Exits, calibrate_for
from exitpoll.decide.certificate import Guarantee
from exitpoll.decide.metrics import METRICS, predictions
from exitpoll.decide.policy import Policy
from exitpoll.decide.trace import Trace
from exitpoll.engine.exit_times import policy_that_asks_all
from exitpoll.engine.onnx_graph import OnnxGraph
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import record, record_in_memory
from exitpoll.engine.runtime import LoadedModel
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.errors import InputError
from exitpoll.export.graphs import CHECKED_TEXTS, export_graphs, random_texts
from exitpoll.export.join import fits_one_file, join_parts
from exitpoll.export.quantize import MOST_TEXTS, quantize
from exitpoll.files import REPLACED, locked, publish, restore, write_text
from exitpoll.models.card import model_card
from exitpoll.models.device import choose_device
from exitpoll.models.fingerprint import fingerprint_of
from exitpoll.models.folder import CARD, MANIFEST, POLICY, TRAINING, check_free_for_model, read_training
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import load_tokenizer

FLOAT32, INT8, JOINED, LAST_ALONE = "float32", "int8", "joined", "last-alone"  # folders inside the work folder
TRACE = "calibration.safetensors"  # in an export: the trace on which its policy was calibrated


@dataclass(frozen=True, repr=False)
class Exported:
    """Result of an export."""

    folder: Path
    runtime: str
    policy: Policy | None  # None if the model has none, or none that holds for the export
    note: str | None = None  # why the policy could not be calibrated
    metric: str | None = None  # of the scores, which need labelled texts
    texts: int = 0  # that were scored
    before: float | None = None  # score of the full model
    after: float | None = None  # score of the full export
    int8: bool = False
    exits_by_itself: bool = True  # whether it is one graph that exits in plain ONNX Runtime too

    def __repr__(self) -> str:
        """Describe the export and its cost."""
        policy = "no policy" if self.policy is None else f"policy: {self.policy.name}"
        scores = ""
        if self.before is not None and self.after is not None:
            scores = f", {self.metric} on {self.texts} texts: {self.before:.4f} before, {self.after:.4f} exported"
        return f"Exported('{self.folder}', {self.runtime}, {policy}{scores})"


def export_model(
    model: str | Path,
    to: str | Path,
    *,
    int8: bool = False,
    single_file: bool = False,
    texts: Texts | None = None,
    about: Mapping[str, object] | None = None,
    policy_for: Callable[[LoadedModel], Policy] | None = None,
    device: str = "auto",
    overwrite: bool = False,
    on_progress: OnProgress = ignore,
) -> Exported:
    """Export a trained model folder, with its policy where that holds for the export.

    The logits of a float32 export equal those of the model up to rounding, so its policy holds as it is. Those of an
    int8 export do not: its policy is calibrated again on texts, and without texts it has none.

    Args:
        model: The trained model folder.
        to: The folder to write.
        int8: Whether to quantize weights and activations.
        single_file: Whether to write one graph even where layers share their weights, which then takes more memory.
        texts: Texts to calibrate the policy on; the ranges of int8 activations are measured on them too, and on random
            texts by default.
        about: Metadata of these texts: data, split, metric.
        policy_for: Returns the policy for the export, where the model's own is not to be calibrated again.
        device: Where to run the model on these texts; the export runs on the CPU.
        overwrite: Whether an older export may be replaced.
        on_progress: Called as the work proceeds.

    Returns:
        What was written.
    """
    model, to = str(model), Path(to)
    _check_place(Path(model), to)
    with locked(to, "export"), _work_folder(to) as work:
        check_free_for_model(to, overwrite=overwrite)
        chosen, source = choose_device(device), _Source.load(model)
        parts = _write_parts(source, work, texts, int8, on_progress)
        joined = fits_one_file(parts, shared_layers=single_file)
        folder, loaded = _joined_to_record(source, parts) if joined else (parts, load_exported(parts))
        exported = Exported(to, loaded.runtime.name, None, int8=int8, exits_by_itself=joined)
        if policy_for is not None:
            exported = replace(exported, policy=policy_for(loaded))
        elif texts is None:
            exported = replace(exported, policy=_policy_without_texts(source, loaded))
        else:
            source.model.to(chosen)
            traces = _record_both(source, loaded, texts, about or {}, folder / TRACE, on_progress)
            exported = _with_scores(_with_calibrated_policy(exported, source.policy, traces[1]), *traces)
        if exported.policy is not None:
            exported.policy.save(folder / POLICY)
        if joined:  # in place of the graph that was recorded; without a policy it never exits early
            _joined(source, parts, exported.policy)
        write_text(folder / CARD, model_card(folder, f"{Path(model).resolve().name}, {loaded.runtime.name}"))
        publish(work, folder.name, to)
    return exported


# ---- files ----------------------------------------------------------------------------------------------------------


def _check_place(model: Path, to: Path) -> None:
    """Refuse to export an export, and to write over the model itself or where nothing can be written."""
    if (model / MANIFEST).exists():
        raise InputError(f"'{model}' is an export already; name the trained folder")
    if not to.resolve().name:
        raise InputError(f"'{to}' is not a folder that an export can be written to; choose another folder")
    if to.resolve() == model.resolve() or to.resolve() in model.resolve().parents:
        raise InputError(f"'{to}' contains the model itself; choose another folder")
    if to.is_dir() and any(to.iterdir()) and not (to / MANIFEST).exists():
        raise InputError(f"'{to}' exists and is not an exitpoll export; choose another folder")
    if not to.parent.is_dir():
        raise InputError(f"there is no folder '{to.parent}' to write '{to.name}' to")


@contextmanager
def _work_folder(to: Path) -> Iterator[Path]:
    """Make a folder in which an export is prepared, in place of what a killed export left, and remove it at the end."""
    work = to.resolve().with_name(f"{to.resolve().name}.exporting")
    if work.exists() and not (
        work.is_dir() and {path.name for path in work.iterdir()} <= {FLOAT32, INT8, JOINED, LAST_ALONE, REPLACED}
    ):
        raise InputError(f"'{work}' exists and is not what an interrupted export leaves; remove it")
    restore(work, to)
    shutil.rmtree(work, ignore_errors=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


@dataclass(frozen=True)
class _Source:
    """The content of a trained model folder."""

    model: EarlyExitModel
    tokenizer: PreTrainedTokenizerBase
    policy: Policy | None
    training: Path | None  # the summary of the training

    @classmethod
    def load(cls, folder: str) -> _Source:
        """Load the folder."""
        policy = Path(folder) / POLICY
        return cls(
            EarlyExitModel.from_pretrained(folder),
            load_tokenizer(folder),
            Policy.load(policy) if policy.exists() else None,
            Path(folder) / TRAINING if read_training(Path(folder)) else None,
        )


def _write_parts(source: _Source, work: Path, texts: Texts | None, int8: bool, on_progress: OnProgress) -> Path:
    """Write the parts of the model into the work folder, and return the folder they are in."""
    folder = work / FLOAT32
    folder.mkdir(parents=True)
    export_graphs(source.model, source.tokenizer, folder, on_progress=named("exporting", on_progress))
    if int8:
        float32, folder = folder, work / INT8
        folder.mkdir()
        sample = Texts(random_texts(source.tokenizer, MOST_TEXTS)) if texts is None else texts
        quantize(float32, folder, sample, on_progress=named("measuring ranges", on_progress))
    if source.training is not None:
        shutil.copy(source.training, folder)
    return folder


def _joined_to_record(source: _Source, parts: Path) -> tuple[Path, LoadedModel]:
    """Join the parts into one graph that asks all exits, and one beside it that asks the last: so asking is timed."""
    problem_type = source.model.config.problem_type
    folder, loaded = _joined(source, parts, policy_that_asks_all(problem_type))

    def load_last_alone() -> OnnxGraph:
        return _graph_of(_joined(source, parts, Policy(problem_type=problem_type), LAST_ALONE)[1])

    _graph_of(loaded).load_last_alone = load_last_alone
    return folder, loaded


def _graph_of(loaded: LoadedModel) -> OnnxGraph:
    """Return the runtime of a joined export."""
    assert isinstance(loaded.runtime, OnnxGraph)
    return loaded.runtime


def _joined(source: _Source, parts: Path, policy: Policy | None, name: str = JOINED) -> tuple[Path, LoadedModel]:
    """Join the parts into one graph with the decisions of a policy, or none, in a folder beside them."""
    folder = parts.with_name(name)
    folder.mkdir(exist_ok=True)
    loaded = join_parts(parts, folder, policy, Texts(random_texts(source.tokenizer, CHECKED_TEXTS)))
    if source.training is not None:
        shutil.copy(source.training, folder)
    return folder, loaded


# ---- policy and scores ----------------------------------------------------------------------------------------------


def _policy_without_texts(source: _Source, exported: LoadedModel) -> Policy | None:
    """Return the policy of the model if it holds for the export as it is: in float32, or if it has no certificate."""
    policy, runtime = source.policy, exported.runtime
    if policy is None or policy.certificate is None:
        return policy
    calibrated = policy.certificate.source
    same_logits = runtime.name == "onnx float32" and calibrated.runtime == "torch float32"
    if not same_logits or calibrated.fingerprint != fingerprint_of(source.model, source.tokenizer):
        return None
    carried = calibrated.carried_to(runtime.fingerprint, runtime.name)
    return replace(policy, certificate=replace(policy.certificate, source=carried))


def _record_both(
    source: _Source,
    exported: LoadedModel,
    texts: Texts,
    about: Mapping[str, object],
    path: Path,
    on_progress: OnProgress,
) -> tuple[Trace, Trace]:
    """Record the model and, in a file, the export."""
    model = loaded_model(source.model, source.tokenizer)
    return (
        record_in_memory(model, texts, about=about, on_progress=named("recording the model", on_progress)),
        record(exported, texts, path, about=about, on_progress=named("recording the export", on_progress)),
    )


def _with_calibrated_policy(exported: Exported, policy: Policy | None, trace: Trace) -> Exported:
    """Add the policy, calibrated on the trace of the export, or a note why that is not possible."""
    try:
        return replace(exported, policy=_calibrate_again(policy, trace))
    except InputError as error:
        return replace(exported, note=str(error))


def _calibrate_again(policy: Policy | None, trace: Trace) -> Policy | None:
    """Calibrate for the same goal in the same way; a policy without a certificate stays as it is."""
    if policy is None or policy.certificate is None:
        return policy
    goal, asked, metric = policy.certificate.goal, policy.certificate.asked, policy.certificate.metric
    strategy = asked if isinstance(asked, str) else Policy(**asked)
    if isinstance(goal, Guarantee) or metric not in METRICS or trace.labels is None:  # then agreement is the score
        metric = None
    allowed = (policy.certificate.trained_on or 0.0) > MOST_TRAINED_ON  # as whoever calibrated the model insisted
    exits: Exits = "auto" if policy.certificate.exits_chosen_on else policy.exit_layers or "all"
    return calibrate_for(trace, goal, strategy, metric=metric, exits=exits, allow_training_texts=allowed)


def _with_scores(exported: Exported, before: Trace, after: Trace) -> Exported:
    """Add the scores of the last exit of model and export, if the texts have labels."""
    if after.labels is None:
        return exported
    metric = after.metric
    return replace(
        exported, metric=metric, texts=len(after), before=_full_score(before, metric), after=_full_score(after, metric)
    )


def _full_score(trace: Trace, metric: str) -> float:
    """Compute the score of the last exit."""
    return METRICS[metric](trace.gold("a score"), predictions(trace.logits[:, -1], trace.problem_type))
