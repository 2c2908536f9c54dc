"""The health of a model folder: are its files complete and unchanged, and what can be done with it?

Every check returns findings; nothing is changed, and no code of the folder runs. torch is imported only to check the
fingerprint of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from rich.table import Table
from rich.text import Text

from exitpoll.cli.console import visible
from exitpoll.data.overlap import TextDigest
from exitpoll.decide.certificate import Source
from exitpoll.decide.policy import Policy
from exitpoll.engine.loading import load_model
from exitpoll.engine.manifest import Manifest
from exitpoll.errors import InputError
from exitpoll.files import check_not_owned, read_json
from exitpoll.models.folder import (
    CARD,
    CONFIG,
    JOURNAL,
    MANIFEST,
    POLICY,
    TOKENIZER,
    TRAINING,
    TrainingSummary,
    exports_of,
    is_model_folder,
    read_training,
)
from exitpoll.report.wording import describe_calibration

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LEFTOVERS = (".partial", ".aside", ".dropped", ".lock")  # endings of what a killed job leaves


class Level(IntEnum):
    """How bad a finding is; also the exit code, where the worst finding counts."""

    OK = 0
    WARNING = 1
    BROKEN = 2


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

    topic: str
    text: str
    level: Level = Level.OK


def examine(folder: Path, *, load_weights: bool = True) -> list[Finding]:
    """Examine a model folder.

    Args:
        folder: What `exitpoll train` or `exitpoll export` wrote.
        load_weights: Whether to load the weights, which takes seconds, to check their fingerprint.

    Returns:
        The findings, in the order of a page.
    """
    if not folder.is_dir() or not is_model_folder(folder):
        raise InputError(
            f"'{folder}' is not an exitpoll model folder; name what exitpoll train or exitpoll export wrote"
        )
    if (folder / MANIFEST).exists():
        return [*_export_findings(folder, "export", None), *_leftover_findings(folder)]
    training, findings = _read_training(folder)
    source = Source.of(training.get("source") or {})
    return [
        *_file_findings(folder),
        *findings,
        *_weight_findings(folder, source, load_weights=load_weights),
        *_version_findings(folder, training),
        *_policy_findings(folder, "policy", source, _exit_layers(folder)),
        *(finding for path in exports_of(folder) for finding in _export_findings(path, path.name, source)),
        *_leftover_findings(folder),
    ]


# ---- a trained folder -----------------------------------------------------------------------------------------------


def _file_findings(folder: Path) -> Iterator[Finding]:
    """Check that all files are there that the model needs."""
    weights = _weight_files(folder)
    needed = [CONFIG, TOKENIZER, *weights]
    missing = [name for name in needed if not (folder / name).is_file()]
    if missing:
        yield Finding("files", f"missing: {', '.join(missing)}; restore the folder, or train again", Level.BROKEN)
        return
    listed = [name for name in (*needed, TRAINING, JOURNAL, POLICY, CARD) if (folder / name).is_file()]
    size = sum((folder / name).stat().st_size for name in listed)
    yield Finding("files", f"complete: {', '.join(listed)} ({size / 1e6:.1f} MB)")


def _weight_files(folder: Path) -> list[str]:
    """Return the names of the files of weights: one, or those that an index names."""
    index = read_json(folder / INDEX)
    if index is None:
        return [WEIGHTS]
    mapped = index.get("weight_map")
    names = set(mapped.values()) if isinstance(mapped, Mapping) else set()
    return [INDEX, *sorted(str(name) for name in names)]


def _read_training(folder: Path) -> tuple[TrainingSummary, list[Finding]]:
    """Read training.json, and describe the training."""
    if not (folder / TRAINING).exists():
        missing = f"{TRAINING} is missing: neither data and scores of the training are known, nor the fingerprint"
        return {}, [Finding("training", missing, Level.WARNING)]
    try:
        training = read_training(folder)
    except InputError as error:
        return {}, [Finding("training", str(error), Level.BROKEN)]
    return training, [Finding("training", _describe_training(training)), *_digest_findings(training)]


def _describe_training(training: TrainingSummary) -> str:
    """Describe encoder, data and the score of the last exit."""
    texts, scores = training.get("texts") or {}, training.get("scores") or {}
    parts = [
        f"{training.get('encoder') or 'an encoder'} on {training.get('data') or 'data without a name'}",
        *(f"{texts[split]:,} texts of {split}" for split in ("train", "calibration", "test") if split in texts),
    ]
    if training.get("exit_layers") and "test" in scores:
        parts.append(f"{training.get('metric')} {100 * scores['test']['exit_scores'][-1]:.1f} % at the last exit")
    return ", ".join(parts)


def _digest_findings(training: TrainingSummary) -> Iterator[Finding]:
    """Check that training texts can be recognized in other data."""
    if "train_digest" not in training:
        unknown = "training.json has no digest of the training texts, so that these are not recognized in other data"
        yield Finding("overlap", unknown, Level.WARNING)
        return
    texts = TextDigest.from_dict(training["train_digest"]).texts
    yield Finding("overlap", f"the {texts:,} training texts are recognized in data for calibration or evaluation")


def _weight_findings(folder: Path, source: Source, *, load_weights: bool) -> Iterator[Finding]:
    """Load the model, and compare its fingerprint with that of the training."""
    if not load_weights:
        yield Finding("weights", "not checked")
        return
    if find_spec("torch") is None or find_spec("transformers") is None:
        yield Finding("weights", "not checked: torch and transformers are not installed", Level.WARNING)
        return
    try:
        actual = load_model(folder, "torch", device="cpu").source.fingerprint
    except InputError as error:
        yield Finding("weights", str(error), Level.BROKEN)
        return
    if source.fingerprint is None:
        yield Finding("weights", f"can be loaded; fingerprint {actual}, with none to compare it with", Level.WARNING)
    elif actual != source.fingerprint:
        changed = f"changed since the training: fingerprint {actual} instead of {source.fingerprint}"
        yield Finding("weights", f"{changed}; restore the folder, or record and calibrate again", Level.BROKEN)
    else:
        yield Finding("weights", f"unchanged since the training: fingerprint {actual}")


def _version_findings(folder: Path, training: TrainingSummary) -> Iterator[Finding]:
    """Compare the versions of packages with those that wrote the folder."""
    recorded = dict(training.get("versions") or {})
    config = read_json(folder / CONFIG) or {}
    recorded.setdefault("transformers", str(config.get("transformers_version") or ""))
    rows = [(name, written, _installed(name)) for name, written in sorted(recorded.items()) if written]
    if not rows:
        yield Finding("versions", "not recorded", Level.WARNING)
        return
    same = [f"{name} {written}" for name, written, installed in rows if installed == written]
    if same:
        yield Finding("versions", f"as at the training: {', '.join(same)}")
    for name, written, installed in rows:
        if installed != written:
            far = installed is None or installed.split(".")[0] != written.split(".")[0]
            text = f"{name} {written} at the training, {installed or 'not installed'} now"
            yield Finding("versions", text, Level.WARNING if far else Level.OK)


def _installed(package: str) -> str | None:
    """Return the version of a package that is installed; None if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ---- policies and exports -------------------------------------------------------------------------------------------


def _exit_layers(folder: Path) -> Sequence[int]:
    """Return the layers of the exits of a trained model; none where they are not known."""
    layers = (read_json(folder / CONFIG) or {}).get("exit_layers")
    if not isinstance(layers, list) or not all(isinstance(layer, int) for layer in layers):
        return ()
    return layers


def _policy_findings(folder: Path, topic: str, source: Source, exit_layers: Sequence[int]) -> Iterator[Finding]:
    """Check that a policy can be used with its model, and describe its certificate."""
    if not (folder / POLICY).exists():
        yield Finding(topic, "there is no policy: every text runs through all layers; calibrate first", Level.WARNING)
        return
    try:
        policy = Policy.load(folder / POLICY)
        policy.source.check_same(source)
        if exit_layers:
            policy.check_exits(exit_layers)
    except InputError as error:
        yield Finding(topic, str(error), Level.BROKEN)
        return
    if policy.certificate is None:
        yield Finding(topic, f"{policy.name}; it has no certificate, and guarantees nothing", Level.WARNING)
        return
    level = Level.OK if policy.threshold is not None else Level.WARNING
    for line in describe_calibration(policy, "its calibration texts"):
        yield Finding(topic, line, level)


def _export_findings(folder: Path, topic: str, source: Source | None) -> Iterator[Finding]:
    """Check the files of an export against their hashes, and describe what it can do."""
    try:
        manifest = Manifest.load(folder)
        with manifest.checking_files(folder):
            size = sum((folder / name).stat().st_size for name in manifest.files if (folder / name).exists())
    except InputError as error:
        yield Finding(topic, str(error), Level.BROKEN)
        return
    layers, exits = len(manifest.layers), len(manifest.exit_layers)
    kind = f"{manifest.precision}, {layers} layers, {exits} exits, {size / 1e6:.1f} MB"
    yield Finding(topic, f"{len(manifest.files)} files are as exported ({kind})")
    if source is not None and source.fingerprint not in (None, manifest.model_fingerprint):
        text = "was exported before the model was trained again: exitpoll export --overwrite renews it"
        yield Finding(topic, text, Level.WARNING)
    installed = _installed("onnxruntime")
    if installed is None:
        yield Finding(topic, "cannot run here: pip install 'exitpoll[onnx]'", Level.WARNING)
    else:
        yield Finding(topic, f"can run here, on the CPU with ONNX Runtime {installed}")
    exported = Source(fingerprint=manifest.fingerprint, runtime=manifest.runtime)
    yield from _policy_findings(folder, topic, exported, manifest.exit_layers)


# ---- leftovers ------------------------------------------------------------------------------------------------------


def _leftover_findings(folder: Path) -> Iterator[Finding]:
    """Look for jobs that are running, and for what killed ones left, in the folder and beside it."""
    folder = folder.resolve()
    beside = [path for path in folder.parent.iterdir() if path.name.startswith(f"{folder.name}.")]
    paths = sorted(path for path in (*beside, *folder.iterdir()) if path.name.endswith(LEFTOVERS))
    for path in paths:
        if path.name.endswith(".lock"):
            yield _lock_finding(path)
        else:
            yield Finding("leftovers", f"'{path}' is of an interrupted job: continue it, or remove it", Level.WARNING)
    if not paths:
        yield Finding("leftovers", "none, and no job is writing here")


def _lock_finding(lock: Path) -> Finding:
    """Describe who holds a lock."""
    try:
        check_not_owned(lock, lock.with_suffix(""))
    except InputError as error:
        return Finding("leftovers", str(error), Level.WARNING)
    text = f"'{lock}' is of a process that was killed: the next job removes it"
    return Finding("leftovers", text, Level.WARNING)


# ---- in words -------------------------------------------------------------------------------------------------------

HEALTH = {Level.OK: "healthy", Level.WARNING: "usable, with warnings", Level.BROKEN: "broken"}


def health_of(findings: Sequence[Finding]) -> Level:
    """Return how bad the worst finding is."""
    return max((finding.level for finding in findings), default=Level.OK)


def result_of(folder: Path, findings: Sequence[Finding]) -> dict[str, object]:
    """Return findings as plain values."""
    rows = [{"topic": row.topic, "level": row.level.name.lower(), "text": row.text} for row in findings]
    return {"model": str(folder), "health": HEALTH[health_of(findings)], "findings": rows}


def findings_list(findings: Sequence[Finding]) -> Table:
    """List the findings of `exitpoll doctor`, with all but good ones marked."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    topic = ""
    for finding in findings:
        mark = "" if finding.level is Level.OK else finding.level.name.lower()
        table.add_row(Text(finding.topic if finding.topic != topic else ""), mark, Text(visible(finding.text)))
        topic = finding.topic
    return table
