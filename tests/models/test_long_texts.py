"""A long text that is cut before it is tokenized has the tokens of the whole, for every kind of tokenizer."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from exitpoll import Texts
from exitpoll.models.long_texts import CHARACTERS, GROWTH, cutter_of, splits_at_spaces
from exitpoll.models.tokenizer import encode, tokenize

SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
CORPUS = ["the film was good and the cast was poor", "we don't like cafés", "x1y2 aaaa aaab 12 123", "été 中文 🙂"]
KINDS = ("wordpiece", "bytes", "unigram", "sequence")
CHUNKS = [
    *("film ", "the good ", " was", "a", "don't ", "123", "x_y ", "[CLS] ", "...", "▁", "aaab" * 20),
    *(" ", "   ", "\t ", "\n", " \r\n", "\u00a0", "\u2003 ", "\x1c ", " " * 70),
    *("e\u0301", " \u0301", "\u0301" * 9, "ſ", "ΑΣ ", "ﬁ ", "´", "\u0600 ", "\u0d4e "),
    *("🙂", "👩\u200d👧 ", "🇩🇪", "中文", "中 "),
]
LONG = st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=60).map("".join)


@cache
def trained(kind: str, max_length: int = 4, side: str = "right") -> Tokenizer:
    model, trainer, normalizer, splitter = {
        "wordpiece": (
            models.WordPiece(unk_token="[UNK]"),
            trainers.WordPieceTrainer(vocab_size=80, special_tokens=SPECIAL),
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        ),
        "bytes": (
            models.BPE(),
            trainers.BpeTrainer(
                vocab_size=300,
                special_tokens=SPECIAL,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            ),
            normalizers.NFC(),
            pre_tokenizers.ByteLevel(add_prefix_space=True),
        ),
        "unigram": (
            models.Unigram(),
            trainers.UnigramTrainer(vocab_size=90, special_tokens=SPECIAL, unk_token="[UNK]"),
            normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
            pre_tokenizers.Metaspace(),
        ),
        "sequence": (
            models.BPE(unk_token="[UNK]"),
            trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIAL),
            normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]),
        ),
    }[kind]
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.enable_truncation(max_length, direction=side)
    return tokenizer


def cut_for(kind: str, texts: Texts, max_length: int = 4, side: str = "right") -> Texts:
    return cutter_of(trained(kind, max_length, side), max_length, side).cut(texts)


def tokens_of(tokenizer: Tokenizer, texts: Texts) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(text=LONG, max_length=st.sampled_from([3, 4, 7]))
def test_cut_texts_have_the_same_tokens(kind, side, text, max_length):
    tokenizer = trained(kind, max_length, side)
    texts = Texts([text, text + " good film" * 40, "good film " * 40 + text])
    assert tokens_of(tokenizer, cut_for(kind, texts, max_length, side)) == tokens_of(tokenizer, texts)


@pytest.mark.parametrize("side", ["right", "left"])
@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(LONG, LONG), min_size=1, max_size=3),
    max_length=st.integers(5, 8),
    repeats=st.integers(1, 9),
)
def test_cut_pairs_have_the_same_tokens(side, pairs, max_length, repeats):
    tokenizer = trained("wordpiece", max_length, side)
    texts = Texts([first * repeats for first, _ in pairs], [second for _, second in pairs])
    assert tokens_of(tokenizer, cut_for("wordpiece", texts, max_length, side)) == tokens_of(tokenizer, texts)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_are_cut(kind, side):
    long = "the film was good " * 200
    cut = cut_for(kind, Texts([long, "a"], ["a", long]), 8, side)
    assert [len(text) for text in cut.first] == [CHARACTERS * 8, 1]
    assert [len(text) for text in cut.second] == [1, CHARACTERS * 8]


def test_pairs_of_two_long_texts_are_cut_where_the_longer_one_has_no_token_more():
    long = Texts(["the film was good " * 200], ["a bad plot " * 300])
    even, odd = (cut_for("wordpiece", long, max_length) for max_length in (9, 8))  # 6 and 5 tokens fit
    assert len(even.first[0]) < len(long.first[0])
    assert odd == long


@pytest.mark.parametrize("text", ["中文" * 500, "aGVsbG8" * 200, " " * 2000, "a_" * 20 + "\n" * 3000])
def test_texts_without_words_stay_whole(text):
    assert cut_for("bytes", Texts([text])).first == [text]


def test_nearly_as_short_texts_stay_whole():
    text = ("good film " * 100)[: CHARACTERS * GROWTH * 4 - 1]
    assert cut_for("bytes", Texts([text])).first == [text]


@pytest.mark.parametrize(
    ("normalizer", "splitter"),
    [
        (None, None),
        (normalizers.Replace(" ", "▁"), pre_tokenizers.Whitespace()),
        (normalizers.Replace(Regex("a.*b"), ""), pre_tokenizers.Whitespace()),
        (normalizers.ByteLevel(), pre_tokenizers.Whitespace()),
        (None, pre_tokenizers.Metaspace(split=False)),
        (None, pre_tokenizers.ByteLevel(use_regex=False)),
        (None, pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(use_regex=False), pre_tokenizers.Whitespace()])),
        (None, pre_tokenizers.Split(" ", "merged_with_next")),
    ],
)
def test_tokenizers_that_may_look_across_spaces_read_whole_texts(normalizer, splitter):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if splitter is not None:
        tokenizer.pre_tokenizer = splitter
    assert not splits_at_spaces(tokenizer)


def test_tokens_with_spaces_prevent_cutting():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert splits_at_spaces(tokenizer)
    tokenizer.add_tokens([AddedToken("New York")])
    assert not splits_at_spaces(tokenizer)


@pytest.mark.parametrize("side", ["right", "left"])
def test_tokenizers_of_transformers_read_no_more(side, monkeypatch):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained("wordpiece").to_str()), pad_token="[PAD]", truncation_side=side
    )
    long, read, lengths = "the film was good " * 200, PreTrainedTokenizerFast.__call__, []
    ids = encode(Texts([long]), tokenizer)["input_ids"][0]

    def read_and_measure(self, texts, *rest, **named):
        lengths.append(max(map(len, texts)))
        return read(self, texts, *rest, **named)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", read_and_measure)
    expected = [*ids[:7], ids[-1]] if side == "right" else [ids[0], *ids[-7:]]
    assert encode(Texts([long, "a"]), tokenizer, 8)["input_ids"][0] == expected
    assert max(lengths) == CHARACTERS * 8
    assert tokenize(Texts([long, "a"]), tokenizer, 8).truncated == 1
    assert max(lengths) == CHARACTERS * 8
