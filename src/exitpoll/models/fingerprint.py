"""The fingerprint of a model: a hash of all that decides its logits, which traces, policies and exports name."""

from __future__ import annotations

import hashlib
import json

import torch
from transformers import PreTrainedTokenizerBase

from exitpoll.data.splits import Texts
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import encode, readable_length

PROBES = Texts(  # tokenizers that treat case, accents, scripts, digits or white space otherwise differ on these
    [
        "The Quick brown fox isn't 1,234.5 km from U.S.A. (or $9)?",
        "naïve Café\u0301 ﬁ Ⅳ — “quotes” …  two  spaces\tand a\nline",
        "日本語 中文 한국어 العربية हिन्दी Русский Ελληνικά",
        "🙂👍🏽 a_b-c@d.org #tag \u00a0\u200b\ufeff x\u0000y",
    ]
)


def fingerprint_of(model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash the weights of a model, its exits, and how texts become tokens.

    Args:
        model: The model.
        tokenizer: Its tokenizer.

    Returns:
        16 hexadecimal digits, the same wherever the model is kept.
    """
    config = model.config
    max_length = readable_length(config.encoder, config.max_length)
    reading = {
        "exit_layers": list(config.exit_layers),
        "pooling": config.pooling,
        "max_length": max_length,
        "truncation_side": tokenizer.truncation_side,
        "vocabulary": sorted(tokenizer.get_vocab().items()),
        "probes": encode(PROBES, tokenizer, max_length),  # truncated as texts are: threads may share the tokenizer
    }
    if config.exit_zero is not None:
        reading["exit_zero"] = config.exit_zero
    digest = hashlib.sha256(json.dumps(reading, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def runtime_name(dtype: torch.dtype) -> str:
    """Return the name of the torch runtime for weights of a type, as traces and policies state it."""
    return f"torch {str(dtype).removeprefix('torch.')}"
