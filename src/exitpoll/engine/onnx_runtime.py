"""Load an export for ONNX Runtime; needs onnxruntime, tokenizers and NumPy only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from exitpoll.data.batching import Tokens
from exitpoll.data.splits import Texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_graph import OnnxGraph
from exitpoll.engine.onnx_parts import OnnxParts
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError
from exitpoll.models.folder import TOKENIZER
from exitpoll.models.long_texts import cutter_of


def load_exported(folder: Path, threads: int | None = None, *, verify: bool = True) -> LoadedModel:
    """Load an export.

    Args:
        folder: Its folder.
        threads: How many threads to use; as many as there are cores by default.
        verify: Whether to check that its files are those that were exported.

    Returns:
        The model.
    """
    manifest = Manifest.load(folder)
    with manifest.checking_files(folder) if verify else nullcontext():
        runtime = (OnnxParts if manifest.graph is None else OnnxGraph)(folder, manifest, threads)
        return LoadedModel(runtime, _tokenize_with(folder, manifest), manifest.label_names)


def _tokenize_with(folder: Path, manifest: Manifest) -> Callable[[Texts], Tokens]:
    """Load a tokenizer that gives the same token ids as transformers."""
    from tokenizers import Tokenizer

    path = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises no other class
        raise InputError(f"'{path}' cannot be read: {error}; export the model again") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest.max_length, direction=manifest.truncation_side)
    with_types = "token_type_ids" in manifest.padding
    cutter = cutter_of(tokenizer, manifest.max_length, manifest.truncation_side)

    def tokenize(texts: Texts) -> Tokens:
        encoded = tokenizer.encode_batch_fast(list(cutter.cut(texts)))
        tokens = {"input_ids": [encoding.ids for encoding in encoded]}
        return {**tokens, "token_type_ids": [encoding.type_ids for encoding in encoded]} if with_types else tokens

    return tokenize
