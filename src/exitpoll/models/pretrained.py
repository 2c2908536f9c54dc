"""What transformers wrote: configurations and weights, read without unpickling and without remote code."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from exitpoll.errors import InputError
from exitpoll.models.encoders import family_of


def read_config(name_or_folder: str | Path) -> PreTrainedConfig:
    """Read an encoder's configuration and make sure that we can walk it.

    Args:
        name_or_folder: A hub name or a local folder of transformers.

    Returns:
        The configuration.
    """
    config = read_any_config(name_or_folder)
    family_of(config)
    return config


def read_any_config(name_or_folder: str | Path) -> PreTrainedConfig:
    """Read a configuration of any kind.

    Args:
        name_or_folder: A hub name or a local folder of transformers.

    Returns:
        The configuration.
    """
    try:
        return AutoConfig.from_pretrained(name_or_folder, trust_remote_code=False)
    except Exception as error:  # a broken file raises whatever its reader stumbles on
        what = "has no config that can be read" if Path(name_or_folder).is_dir() else "is no folder, nor on the hub"
        raise InputError(f"'{name_or_folder}' {what}: {error}") from error


def load_body(
    auto: Any,
    name_or_folder: str | Path,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    optional: tuple[str, ...] = (),
) -> PreTrainedModel:
    """Load a model with all its weights.

    Args:
        auto: The class of transformers that knows which model a configuration is of.
        name_or_folder: A hub name or a local folder of transformers.
        config: Its configuration, shortened perhaps.
        dtype: Type of the weights.
        optional: Parts that may be without weights.

    Returns:
        The model.
    """
    try:
        body, loaded = auto.from_pretrained(
            name_or_folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # a broken file raises whatever its reader stumbles on
        raise InputError(f"the safetensors weights of '{name_or_folder}' cannot be loaded: {error}") from error
    check_whole(name_or_folder, [name for name in loaded["missing_keys"] if name.split(".")[0] not in optional])
    return body


def check_whole(name_or_folder: str | Path, missing: Collection[str]) -> None:
    """Refuse a model some of whose weights transformers has filled at random.

    Args:
        name_or_folder: Where it comes from.
        missing: The names of weights that were not there.
    """
    if missing:
        raise InputError(f"'{name_or_folder}' lacks weights, {min(missing)} among them; is it the right kind of model?")
