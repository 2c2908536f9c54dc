"""Exit 0: what its head reads, and that neither padding nor other texts change it."""

from __future__ import annotations

import pickle

import pytest
import torch

from exitpoll import EarlyExitModel, InputError
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from exitpoll.models.config import make_config
from exitpoll.models.exit_zero import MULTIPLIER, PRIME, NgramTable, pool_embeddings
from tests.tiny import LAYERS, tiny_config, tokens

LABELS = ["bad", "good", "so-so"]


def build(folder, seed=0, **options):
    torch.manual_seed(seed)
    model = EarlyExitModel.from_encoder(folder, labels=LABELS, **{"exit_zero": "ngrams", **options}).eval()
    table = model.heads[0].ngrams
    if table is not None:
        torch.nn.init.normal_(table.weight)
    return model


def table_of(buckets=7):
    table = NgramTable(60, buckets, 3)
    torch.nn.init.normal_(table.weight)
    return table


@torch.no_grad()
def test_n_grams_are_the_mean_of_their_rows():
    table, ids = table_of(), [5, 9, 11]
    rows = [*ids, *(60 + (MULTIPLIER * first + second) % PRIME % 7 for first, second in ((5, 9), (9, 11)))]
    expected = table.weight[rows].sum(dim=0) / 3
    torch.testing.assert_close(table(torch.tensor([ids]), None)[0], expected)


def test_an_untrained_table_adds_nothing_and_two_tokens_have_an_order():
    assert not NgramTable(60, 7, 3).weight.any()
    forward, backward = table_of(2**16).pairs_of(torch.tensor([[5, 9], [9, 5]]))
    assert forward != backward


@torch.no_grad()
def test_embeddings_are_pooled_by_mean_maximum_and_minimum():
    hidden = torch.tensor([[[1.0, -2.0], [3.0, 4.0], [100.0, -100.0]]])
    expected = torch.tensor([[2.0, 1.0, 3.0, 4.0, 1.0, -2.0]])
    torch.testing.assert_close(pool_embeddings(hidden, torch.tensor([[1, 1, 0]])), expected)
    torch.testing.assert_close(pool_embeddings(hidden[:, :2], None), expected)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_and_other_texts_change_no_n_gram(side):
    table, ids = table_of(), torch.tensor([[5, 9, 11, 30]])
    alone = table(ids, None)
    filler, zeros, ones = torch.full((1, 3), 8), torch.zeros(1, 3), torch.ones(1, 4)
    parts = [(filler, zeros), (ids, ones)]
    joined = [torch.cat(columns, dim=1) for columns in zip(*(parts if side == "left" else parts[::-1]), strict=True)]
    other = torch.arange(10, 17)[None]
    together = table(torch.cat([joined[0], other]), torch.cat([joined[1], torch.ones(1, 7)]))
    torch.testing.assert_close(together[:1], alone)
    assert (together[1] - alone[0]).abs().max() > 0.01


@torch.no_grad()
def test_the_logits_of_a_text_do_not_depend_on_its_batch(encoder_folder):
    model, batch = build(encoder_folder), tokens(0)
    together = model(**batch).exit_logits
    for row, length in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
        alone = model(input_ids=batch["input_ids"][row : row + 1, :length]).exit_logits[0]
        torch.testing.assert_close(alone, together[row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["embeddings", "ngrams"])
@torch.no_grad()
def test_exit_zero_changes_no_other_exit_and_survives_saving(encoder_folder, tmp_path, kind):
    torch.manual_seed(0)
    plain = EarlyExitModel.from_encoder(encoder_folder, labels=LABELS).eval()
    model = plain.with_exit_zero(kind, ngram_buckets=99)
    before, after = (some(**tokens(0)).exit_logits for some in (plain, model))
    assert after.shape == (4, LAYERS + 1, 3)
    assert torch.equal(after[:, 1:], before)
    assert plain.config.exit_layers == [1, 2, 3]
    model.save_pretrained(tmp_path)
    for again in (EarlyExitModel.from_pretrained(tmp_path), pickle.loads(pickle.dumps(model))):
        config = again.config
        assert (config.exit_layers, config.exit_zero, config.ngram_buckets) == ([0, 1, 2, 3], kind, 99)
        assert torch.equal(again(**tokens(0)).exit_logits, after)
    with pytest.raises(InputError, match="has an exit 0 already"):
        model.with_exit_zero()


@pytest.mark.parametrize(("kind", "classes"), [(SINGLE_LABEL, 3), (MULTI_LABEL, 3), (REGRESSION, 1)])
def test_every_problem_type_trains_exit_zero(encoder_folder, kind, classes):
    model = EarlyExitModel.from_encoder(encoder_folder, labels=classes, problem_type=kind, exit_zero="ngrams")
    labels = {SINGLE_LABEL: torch.tensor([0, 1, 2, 0]), MULTI_LABEL: torch.ones(4, 3), REGRESSION: torch.ones(4)}
    model(**tokens(0), labels=labels[kind]).loss.backward()
    for parameter in model.heads[0].parameters():
        assert parameter.grad.any()


def test_a_shared_head_is_shared_by_the_exits_after_a_layer(encoder_folder, classifier_folder):
    model = build(encoder_folder, shared_head=True)
    assert len(model.heads) == 2
    assert [model.head_at(number) for number in range(4)] == [model.heads[0], *[model.heads[1]] * 3]
    native = EarlyExitModel.from_classifier(classifier_folder, exits=[0, 3])
    assert len(native.heads) == 1
    assert native(**tokens(0)).exit_logits.shape == (4, 2, 3)


def test_exits_and_what_exit_zero_reads_follow_from_each_other():
    encoder = tiny_config("bert")
    assert make_config(encoder=encoder, exit_layers=[0, 2]).exit_zero == "embeddings"
    assert make_config(encoder=encoder, exit_layers=[2], exit_zero="ngrams").exit_layers == [0, 2]
    assert make_config(encoder=encoder, exit_zero="ngrams").exit_layers == [0, 1, 2, 3]
    assert make_config(encoder=encoder).exit_zero is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exit_layers": [0]}, "must be distinct layers in increasing order between 1 and 3; 0, before the first"),
        ({"exit_layers": [-1, 2]}, "must be distinct layers"),
        ({"exit_zero": "words"}, "exit_zero 'words' is unknown; choose one of: embeddings, ngrams"),
        ({"exit_zero": "ngrams", "ngram_buckets": 0}, "ngram_buckets 0 must be an integer, at least 1"),
    ],
)
def test_refuses_what_is_no_exit_zero(fields, message):
    with pytest.raises(InputError, match=message):
        make_config(encoder=tiny_config("bert"), **fields)
