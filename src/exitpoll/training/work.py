"""The work folder of a training: what the training depends on, so that only the same training is resumed in it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from exitpoll.data.splits import Splits, Texts
from exitpoll.errors import InputError
from exitpoll.files import read_json, write_json
from exitpoll.models.model import EarlyExitModel
from exitpoll.training import ranks
from exitpoll.training.settings import TrainingSettings

SPLITS = ("train", "calibration", "test")
IDENTITY = "identity.json"
SECONDS = "seconds.json"  # how long the training took in all its sessions

Identity = Mapping[str, Mapping[str, object]]


def identity_of(model: EarlyExitModel, splits: Splits, settings: TrainingSettings) -> Identity:
    """Collect all that a training depends on.

    Args:
        model: The model before training.
        splits: The texts.
        settings: Resolved settings.

    Returns:
        Plain values, in groups.
    """
    weights = hashlib.sha256()
    frozen = model.heads[1:].parameters() if settings.schedule == "exit-zero" else ()
    for parameter in (*model.encoder.parameters(), *frozen):
        weights.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy())
    config, count = model.config, ranks.processes().num_processes
    return {
        **({"number of": {"processes": count}} if count > 1 else {}),
        "setting": asdict(settings),
        "model": {
            "encoder": weights.hexdigest(),
            "exit_layers": list(config.exit_layers),
            "head": [config.head, config.shared_head, config.native_head],
            "pooling": config.pooling,
            "exit_zero": [config.exit_zero, config.ngram_buckets],
            "max_length": config.max_length,
            "labels": list(splits.label_names),
            "metric": splits.metric,
        },
        "split": {name: digest_of_texts(getattr(splits, name)) for name in SPLITS},
    }


def digest_of_texts(texts: Texts) -> str:
    """Hash texts and labels.

    Args:
        texts: The texts, with labels or without.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256(json.dumps([list(texts.first), list(texts.second or ())]).encode())
    digest.update(b"" if texts.labels is None else texts.labels.tobytes())
    return digest.hexdigest()


def open_work(work: Path, identity: Identity, *, resume: bool, overwrite: bool) -> None:
    """Create the work folder, or reuse that of the same training if it was interrupted.

    Args:
        work: The work folder.
        identity: What the training depends on.
        resume: Whether to resume an interrupted training.
        overwrite: Whether to discard an interrupted training.
    """
    earlier = read_json(work / IDENTITY)
    if work.exists() and earlier is None:
        raise InputError(f"'{work}' exists and is not the work folder of a training; move it or choose another folder")
    if work.exists() and not resume:
        if not overwrite:
            message = f"'{work}' holds an interrupted training: use resume, or overwrite to discard it"
            raise InputError(message, options=("resume", "overwrite"))
        shutil.rmtree(work)
    elif earlier is not None:
        _check_same(work, earlier, identity)
    work.mkdir(parents=True, exist_ok=True)
    write_json(work / IDENTITY, identity)


def _check_same(work: Path, earlier: Mapping[str, object], identity: Identity) -> None:
    """Refuse to resume another training."""
    differing = [
        f"{group} {name}"
        for group in {**identity, **earlier}
        for name, value, stored in _paired(identity.get(group), earlier.get(group))
        if value != stored
    ]
    if differing:
        raise InputError(f"'{work}' was started with another {', another '.join(differing)}: resume with the same")


def _paired(values: object, stored: object) -> Iterator[tuple[str, object, object]]:
    """Yield name, value and stored value of whatever either group holds; None where it does not."""
    first, second = (group if isinstance(group, Mapping) else {} for group in (values, stored))
    for name in {**first, **second}:
        yield name, first.get(name), second.get(name)
