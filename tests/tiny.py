"""Tiny random encoders of every family, a tokenizer and a task that they can learn; nothing is downloaded."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from exitpoll import Splits, Texts

LAYERS = 3
_COMMON = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}

# A tiny configuration of every model type, and more where an architecture has variants.
CONFIGS: dict[str, tuple[str, dict]] = {
    "albert": ("albert", _COMMON | {"embedding_size": 16}),
    "albert with groups": ("albert", _COMMON | {"embedding_size": 16, "num_hidden_groups": 2}),
    "bert": ("bert", _COMMON),
    "camembert": ("camembert", _COMMON | {"pad_token_id": 1}),
    "deberta-v2": (
        "deberta-v2",
        _COMMON | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "conv_kernel_size": 3},
    ),
    "deberta-v3": (
        "deberta-v2",
        _COMMON
        | {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    "distilbert": (
        "distilbert",
        {
            "vocab_size": 60,
            "dim": 32,
            "n_layers": LAYERS,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 40,
        },
    ),
    "electra": ("electra", _COMMON | {"embedding_size": 16}),
    "electra with wide embeddings": ("electra", _COMMON | {"embedding_size": 32}),
    "modernbert": ("modernbert", _COMMON | _SPECIAL | {"global_attn_every_n_layers": 2, "local_attention": 4}),
    "modernbert with mean pooling": (
        "modernbert",
        _COMMON | _SPECIAL | {"global_attn_every_n_layers": 2, "local_attention": 4, "classifier_pooling": "mean"},
    ),
    "mpnet": ("mpnet", _COMMON | {"pad_token_id": 1}),
    "roberta": ("roberta", _COMMON | {"pad_token_id": 1}),
    "xlm-roberta": ("xlm-roberta", _COMMON | {"pad_token_id": 1}),
}
NO_SDPA = {"deberta-v2", "mpnet"}  # for which transformers has eager attention only


def tiny_config(name: str, **changes):
    model_type, settings = CONFIGS[name]
    return AutoConfig.for_model(model_type, **settings | changes)


def _larger_weights(model):
    """Draw random weights so large that layers differ: with the usual 0.02 a layer is close to the identity."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
    return model.eval()


def tiny_encoder(name: str, attention: str = "eager", seed: int = 0):
    torch.manual_seed(seed)
    return _larger_weights(AutoModel.from_config(tiny_config(name), attn_implementation=attention))


def tiny_classifier(name: str, classes: int = 3, seed: int = 0, **changes):
    torch.manual_seed(seed)
    config = tiny_config(name, **changes)
    config.num_labels = classes
    return _larger_weights(AutoModelForSequenceClassification.from_config(config))


def tokens(pad: int, lengths=(9, 5, 7, 3), seed: int = 0, types: bool = False) -> dict[str, torch.Tensor]:
    """Draw token ids, padded to the longest text; with types, the second half of a text is a second sentence."""
    torch.manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(5, 60, (len(lengths), longest))
    mask = (torch.arange(longest)[None] < torch.tensor(lengths)[:, None]).long()
    batch = {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}
    if types:
        halves = torch.tensor(lengths)[:, None] // 2
        batch["token_type_ids"] = (torch.arange(longest)[None] >= halves).long() * mask
    return batch


GOOD, BAD, SO_SO = (["good", "fine", "great"], ["bad", "awful", "poor"], ["medium", "average", "plain"])
FILLERS = ["the", "film", "was", "and", "with", "a", "very", "it", "plot", "cast", "of", "in", "this"]
WORDS = [*GOOD, *BAD, *SO_SO, *FILLERS]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def toy_rows(count: int, seed: int = 0, pairs: bool = False) -> list[tuple[str, ...]]:
    """Make sentences whose class depends on a single word."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        label, words = chance.choice([("bad", BAD), ("good", GOOD), ("so-so", SO_SO)])
        sentence = [chance.choice(FILLERS) for _ in range(chance.randint(2, 9))]
        sentence.insert(chance.randint(0, len(sentence)), chance.choice(words))
        texts = (" ".join(sentence), " ".join(chance.choices(FILLERS, k=3))) if pairs else (" ".join(sentence),)
        rows.append((*texts, label))
    return rows


def toy_texts(count: int, seed: int = 0) -> Texts:
    rows = toy_rows(count, seed)
    return Texts([row[0] for row in rows], None, np.array([["bad", "good", "so-so"].index(row[1]) for row in rows]))


def toy_splits(train: int = 96, others: int = 24) -> Splits:
    return Splits(
        train=toy_texts(train, 1),
        calibration=toy_texts(others, 2),
        test=toy_texts(others, 3),
        label_names=["bad", "good", "so-so"],
        problem_type="single_label_classification",
        metric="accuracy",
    )


def write_tsv(path: Path, rows: Sequence[tuple[str, ...]], header: tuple[str, ...] = ("text", "label")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in [header, *rows]), encoding="utf-8")
    return path


def assert_same_rows(first: Path, second: Path) -> None:
    """Compare two CSV files of predictions; other texts in a batch change the last digit of a probability."""
    ours, theirs = (list(csv.DictReader(path.open(encoding="utf-8"))) for path in (first, second))
    shares = [np.array([float(row.pop("probability")) for row in rows]) for rows in (ours, theirs)]
    assert ours == theirs
    np.testing.assert_allclose(shares[0], shares[1], rtol=0, atol=2e-6)


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_toy_folder(folder: Path, train: int = 96, others: int = 24) -> Path:
    for name, count, seed in (("train", train, 1), ("dev", others, 2), ("test", others, 3)):
        write_tsv(folder / f"{name}.tsv", toy_rows(count, seed))
    return folder


def save_varied_classifier(folder: Path, classes: int = 3) -> Path:
    """Save a classifier that gives all of its answers about equally often."""
    classifier, tokenizer = tiny_classifier("bert", classes=classes), tiny_tokenizer()
    batch = tokenizer(list(toy_texts(200).first), padding=True, return_tensors="pt")
    with torch.no_grad():
        classifier.classifier.bias -= classifier(**batch).logits.mean(dim=0)
    classifier.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_tiny(name: str, folder: Path, classifier: bool = False) -> Path:
    model = tiny_classifier(name) if classifier else tiny_encoder(name)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
