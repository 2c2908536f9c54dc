"""Shared by the benchmarks: a random encoder, texts for it, alternate timing, a file of results."""

from __future__ import annotations

import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures"
VOCABULARY = 30_522


def make_encoder(folder: Path, layers: int = 12, width: int = 384) -> Path:
    """Write a BERT with random weights, on which speed does not depend, and a word-level tokenizer."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
    )
    BertModel(config).save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + [f"w{number}" for number in range(VOCABULARY - len(special))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    roles = dict(zip(names, special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles).save_pretrained(folder)
    return folder


def make_texts(count: int, tokens: int, seed: int = 0) -> list[str]:
    """Draw texts of the given number of tokens, [CLS] and [SEP] included."""
    generator = random.Random(seed)
    return [" ".join(f"w{generator.randrange(20_000)}" for _ in range(tokens - 2)) for _ in range(count)]


def time_alternately(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Time several functions alternately, so that other load affects all of them alike.

    Args:
        candidates: The functions, by name.
        rounds: How often they are timed, after a warm-up round.

    Returns:
        The median seconds, by name.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for attempt in range(rounds + 1):
        for name, run in candidates.items():
            started = time.perf_counter()
            run()
            if attempt:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}


def write_results(name: str | Path, results: Mapping[str, object], *, show: bool = True) -> None:
    """Write results with the versions and the machine that they were measured on, and print them.

    Args:
        name: Of the results, or the path of another file.
        results: What was measured.
        show: Whether to print them.
    """
    path = RESULTS / f"{name}.json" if isinstance(name, str) else name
    path.parent.mkdir(exist_ok=True)
    versions = {package: version(package) for package in ("exitpoll", "torch", "transformers")}
    machine = {"threads": torch.get_num_threads(), "processor": platform.machine()}
    content = json.dumps({"versions": versions, "machine": machine, **results}, indent=2)
    path.write_text(content + "\n", encoding="utf-8")
    if show:
        print(content)
