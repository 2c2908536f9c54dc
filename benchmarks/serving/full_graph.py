"""The full model as one ONNX graph with its tokenizer: what other servers run. Needs onnxruntime and tokenizers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import InferenceSession, SessionOptions
from tokenizers import Tokenizer


class FullGraph:
    """Answers batches of texts at full depth, on one thread."""

    def __init__(self, work: Path) -> None:
        """Load graph and tokenizer.

        Args:
            work: The folder that the benchmark prepares.
        """
        settings = json.loads((work / "full.json").read_text(encoding="utf-8"))
        self.labels = settings["labels"]
        options = SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.session = InferenceSession(str(work / "full.onnx"), options, providers=["CPUExecutionProvider"])
        self.inputs = [tensor.name for tensor in self.session.get_inputs()]
        self.tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        self.tokenizer.enable_truncation(settings["max_length"])
        self.tokenizer.enable_padding(pad_id=settings["padding"])

    def predict(self, texts: Sequence[str | Sequence[str]]) -> list[dict[str, Any]]:
        """Answer texts as one batch.

        Args:
            texts: Texts, or pairs of them.

        Returns:
            Label and probability of every text.
        """
        encoded = self.tokenizer.encode_batch([text if isinstance(text, str) else tuple(text) for text in texts])
        columns = {
            "input_ids": np.array([text.ids for text in encoded]),
            "attention_mask": np.array([text.attention_mask for text in encoded]),
            "token_type_ids": np.array([text.type_ids for text in encoded]),
        }
        [logits] = self.session.run(None, {name: columns[name] for name in self.inputs})  # (texts, classes)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        best = shares.argmax(axis=1)
        return [
            {"label": self.labels[number], "probability": float(row[number])}
            for number, row in zip(best, shares, strict=True)
        ]
