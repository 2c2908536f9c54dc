"""Check the files of a model before transformers reads them: they may come from a stranger.

transformers takes from these files which other files to read, and from where to download code that computes the
attention. What is checked here keeps a model to its own folder, to safetensors and JSON, and to code that is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from transformers.utils import cached_file

from exitpoll.errors import InputError
from exitpoll.files import JsonObject, read_json
from exitpoll.models.folder import CONFIG

INDEX = "model.safetensors.index{variant}.json"
ADAPTER = "adapter_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"

# Attention that is part of torch or transformers. For flash attention transformers may download code from the hub;
# whoever wants it can ask for it when loading.
ATTENTION = ("eager", "sdpa", "flex_attention")
REFUSED_FIELDS = {
    "quantization_config": "quantized weights are not supported",
    "configuration_files": "a config.json that names other configurations is not supported",
    "transformers_weights": "a config.json that names its weights is not supported",
}
MOST = {  # larger values would take hours or all memory before they are found not to fit the weights
    "hidden_size": 10**5,
    "dim": 10**5,
    "num_hidden_layers": 1000,
    "n_layers": 1000,
    "num_labels": 10**6,
    "max_position_embeddings": 10**7,
    "vocab_size": 10**8,
}

Options = Mapping[str, Any]  # of a download: revision, subfolder, token, …
DOWNLOAD_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def check_config(name_or_folder: str | Path, options: Options | None = None) -> None:
    """Refuse a configuration that would make transformers load code, other files, or more than fits into memory.

    Args:
        name_or_folder: A hub name or a local folder.
        options: Options of the download.
    """
    for name, value in _fields(_read(name_or_folder, CONFIG, options)):
        if name in REFUSED_FIELDS and value is not None:
            raise InputError(f"config.json of '{name_or_folder}' has {name}: {REFUSED_FIELDS[name]}")
        if name.strip("_").removesuffix("_internal") == "attn_implementation":
            _check_attention(name_or_folder, name, value)
        if name in MOST and isinstance(value, int | float) and not value <= MOST[name]:
            raise InputError(f"config.json of '{name_or_folder}' has {name} {value}; it must be at most {MOST[name]}")


def _check_attention(name_or_folder: str | Path, name: str, value: object) -> None:
    """Refuse an implementation of attention that is not known; a hub name would be downloaded and run."""
    if value is not None and value not in ATTENTION:
        known = ", ".join(ATTENTION)
        raise InputError(f"config.json of '{name_or_folder}' has {name} {value!r:.60}; known are: {known}")


def check_weights(name_or_folder: str | Path, options: Options | None = None, variant: str | None = None) -> None:
    """Refuse an index of weights that names anything but safetensors files beside it, and adapters of other models.

    Args:
        name_or_folder: A hub name or a local folder.
        options: Options of the download.
        variant: Of the weights, as in transformers.
    """
    if _find(name_or_folder, ADAPTER, options) is not None:
        raise InputError(f"'{name_or_folder}' has an {ADAPTER}: merge the adapter into its model first")
    index = INDEX.format(variant="" if variant is None else f".{variant}")
    shards = _read(name_or_folder, index, options).get("weight_map", {})
    for shard in shards.values() if isinstance(shards, Mapping) else [shards]:
        if not _is_plain(shard) or not str(shard).endswith(".safetensors"):
            raise InputError(
                f"{index} of '{name_or_folder}' names {shard!r:.60}; weights must be .safetensors files beside it"
            )


def check_tokenizer(name_or_folder: str | Path) -> None:
    """Refuse a tokenizer that names files elsewhere.

    Args:
        name_or_folder: A hub name or a local folder.
    """
    names = _read(name_or_folder, TOKENIZER_CONFIG, None).get("fast_tokenizer_files") or []
    for name in names if isinstance(names, list) else [names]:
        if not _is_plain(name):
            raise InputError(f"{TOKENIZER_CONFIG} of '{name_or_folder}' names {name!r:.60}, which is not a file there")


def download_options(named: Mapping[str, Any]) -> Options:
    """Return those of the arguments of `from_pretrained` that say where files come from.

    Args:
        named: The arguments.

    Returns:
        The options of the download.
    """
    return {name: named[name] for name in DOWNLOAD_OPTIONS if name in named}


def _read(name_or_folder: str | Path, file: str, options: Options | None) -> JsonObject:
    """Read a JSON file of a model; empty where it is missing or broken, which transformers reports."""
    path = _find(name_or_folder, file, options)
    return {} if path is None else read_json(path) or {}


def _find(name_or_folder: str | Path, file: str, options: Options | None) -> Path | None:
    """Find a file of a model, in its folder or on the hub, as transformers does; None if there is none."""
    try:
        path = cached_file(str(name_or_folder), file, _raise_exceptions_for_missing_entries=False, **(options or {}))
    except (OSError, ValueError):
        return None
    return None if path is None else Path(path)


def _fields(content: object) -> Iterator[tuple[str, object]]:
    """Iterate over the fields of an object and of all objects inside it."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield from value.items()
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _is_plain(name: object) -> bool:
    """Return whether a name is that of a file, without any folder, on every operating system."""
    if not isinstance(name, str) or name in ("", ".", ".."):
        return False
    return PurePosixPath(name).name == name and PureWindowsPath(name).name == name
