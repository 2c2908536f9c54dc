"""EarlyExitModel: what it is built from, what it returns, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from exitpoll import EarlyExitModel, ExitConfig, InputError
from exitpoll.models.encoders import FAMILIES
from exitpoll.models.heads import HEADS
from exitpoll.models.losses import relevancy
from tests.tiny import CONFIGS, LAYERS, save_tiny, tiny_classifier, tiny_config, tiny_encoder, tokens


def build(name="bert", **options) -> EarlyExitModel:
    torch.manual_seed(0)
    return EarlyExitModel(ExitConfig(encoder=tiny_config(name), num_labels=3, **options)).eval()


class TestOutput:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_shapes(self, name):
        model = build(name)
        output = model(**tokens(model.config.encoder.pad_token_id or 0))
        assert output.exit_logits.shape == (4, LAYERS, 3)
        torch.testing.assert_close(output.logits, output.exit_logits[:, -1])
        assert output.loss is None

    def test_loss_is_relevancy(self):
        model = build()
        labels = torch.tensor([0, 1, 2, 0])
        output = model(**tokens(0), labels=labels)
        torch.testing.assert_close(output.loss, relevancy(output.exit_logits, labels))

    def test_tuple(self):
        logits, exit_logits = build()(**tokens(0), return_dict=False)
        assert (logits.shape, exit_logits.shape) == ((4, 3), (4, LAYERS, 3))

    @pytest.mark.parametrize("pooling", ["mean", "first", "pooler", "attention"])
    @pytest.mark.parametrize("head", ["mlp", "linear"])
    @pytest.mark.parametrize("shared_head", [False, True])
    @torch.no_grad()
    def test_padding_changes_nothing(self, pooling, head, shared_head):
        model = build(pooling=pooling, head=head, shared_head=shared_head)
        for query in model.attentions.parameters():
            query.normal_()  # with zeros it would be the mean
        batch = tokens(0, lengths=(9, 4))
        alone = model(batch["input_ids"][1:, :4]).exit_logits
        torch.testing.assert_close(model(**batch).exit_logits[1:], alone, rtol=1e-4, atol=1e-5)

    def test_heads_are_modules_of_their_own(self):
        weights = [head.out.weight for head in build().heads]
        assert len(weights) == LAYERS
        assert not torch.equal(weights[0], weights[1])

    def test_a_shared_head_is_one_module(self):
        assert len(build(shared_head=True).heads) == 1

    def test_a_new_head_is_one_row(self, monkeypatch):
        monkeypatch.setitem(HEADS, "plain", lambda width, classes, dropout: torch.nn.Linear(width, classes))
        assert build(head="plain")(**tokens(0)).exit_logits.shape == (4, LAYERS, 3)

    def test_gradient_checkpointing_gives_the_same_gradients(self):
        gradients, calls = [], []
        for checkpointing in (False, True):
            model = build().train()
            model.encoder.encoder.layer[0].attention.register_forward_hook(
                lambda *_, at=checkpointing: calls.append(at)
            )
            for part in model.modules():
                if isinstance(part, torch.nn.Dropout):
                    part.p = 0.0
            if checkpointing:
                model.gradient_checkpointing_enable()
            model(**tokens(0), labels=torch.tensor([0, 1, 2, 0])).loss.backward()
            gradients.append(model.encoder.embeddings.word_embeddings.weight.grad)
        torch.testing.assert_close(gradients[0], gradients[1])
        assert calls == [False, True, True]  # with checkpointing, a layer runs again in the backward pass


class TestFromEncoder:
    @pytest.mark.parametrize("name", CONFIGS)
    @torch.no_grad()
    def test_keeps_the_pretrained_weights(self, name, tmp_path):
        reference = tiny_encoder(name)
        reference.save_pretrained(tmp_path)
        model = EarlyExitModel.from_encoder(tmp_path, labels=["no", "yes"]).eval()
        batch = tokens(model.config.encoder.pad_token_id or 0)
        *_, (_, hidden) = model.walk_exits(batch)
        real = batch["attention_mask"].bool()  # the values at padding depend on the attention implementation
        torch.testing.assert_close(hidden[real], reference(**batch).last_hidden_state[real], rtol=0, atol=1e-5)
        assert model.config.id2label == {0: "no", 1: "yes"}

    @pytest.mark.parametrize("name", CONFIGS)
    @torch.no_grad()
    def test_a_static_model_is_the_first_layers(self, name, tmp_path):
        reference = tiny_encoder(name)
        reference.save_pretrained(tmp_path)
        model = EarlyExitModel.from_encoder(tmp_path, labels=2, exits=[2]).eval()
        batch = tokens(model.config.encoder.pad_token_id or 0)
        [(number, hidden)] = model.walk_exits(batch)
        expected = reference(**batch, output_hidden_states=True).hidden_states[2]
        assert number == 0
        real = batch["attention_mask"].bool()
        expected = model.family.read(model.encoder, expected)
        torch.testing.assert_close(hidden[real], expected[real], rtol=0, atol=1e-5)
        assert model(**batch).exit_logits.shape == (4, 1, 2)

    @pytest.mark.parametrize("name", [name for name in CONFIGS if not name.startswith("albert")])
    def test_layers_above_the_last_exit_are_not_loaded(self, name, tmp_path):
        tiny_encoder(name).save_pretrained(tmp_path)
        whole = EarlyExitModel.from_encoder(tmp_path, labels=2)
        static = EarlyExitModel.from_encoder(tmp_path, labels=2, exits=[1])
        count = [sum(weights.numel() for weights in model.encoder.parameters()) for model in (whole, static)]
        layer = sum(
            weights.numel()
            for key, weights in whole.encoder.named_parameters()
            if any(f"{prefix}.2." in key for prefix in ("layer", "layers"))
        )
        assert layer > 0
        assert count[0] - count[1] == pytest.approx(2 * layer, rel=0.01)  # ModernBERT's first layer lacks a norm

    @torch.no_grad()
    def test_chosen_exits(self, encoder_folder):
        model = EarlyExitModel.from_encoder(encoder_folder, labels=2, exits=[1, 3])
        assert [number for number, _ in model.walk_exits(tokens(0))] == [0, 1]
        assert len(model.heads) == 2

    @pytest.mark.parametrize("exits", [[0], [4], [2, 2], [3, 1], []])
    def test_refuses_impossible_exits(self, encoder_folder, exits):
        with pytest.raises(InputError, match="distinct layers in increasing order between 1 and 3"):
            EarlyExitModel.from_encoder(encoder_folder, labels=2, exits=exits)

    def test_refuses_a_missing_folder(self):
        with pytest.raises(InputError, match="'no/such' is neither a folder nor on the hub"):
            EarlyExitModel.from_encoder("no/such", labels=2)

    def test_refuses_an_unknown_type_and_lists_the_known(self, tmp_path):
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
        with pytest.raises(InputError) as caught:
            EarlyExitModel.from_encoder(tmp_path, labels=2)
        assert "'gpt2'" in str(caught.value)
        assert all(known in str(caught.value) for known in FAMILIES)

    @pytest.mark.parametrize(("option", "value"), [("head", "cnn"), ("pooling", "max")])
    def test_refuses_unknown_options(self, encoder_folder, option, value):
        with pytest.raises(InputError, match=f"{option} '{value}' is unknown; choose one of: m"):
            EarlyExitModel.from_encoder(encoder_folder, labels=2, **{option: value})

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"labels": "spam"}, "must be the names of the classes, or their number"),
            ({"labels": 2.5}, "must be the names of the classes, or their number"),
            ({"labels": 0}, "must be one class or more"),
            ({"labels": ["a", "a"]}, "all of them different"),
            ({"exits": 2}, "must be a list of layers"),
            ({"exits": [1.5]}, "must be distinct layers"),
            ({"exits": ["1"]}, "must be distinct layers"),
            ({"problem_type": "ranking"}, "problem type 'ranking' is unknown; choose one of: single_label"),
            ({"head": 3}, "head"),
            ({"max_length": "128"}, "max_length"),
            ({"max_length": 2}, "max_length 2 must be an integer, at least 3"),
        ],
    )
    def test_refuses_what_cannot_be_built(self, encoder_folder, options, message):
        with pytest.raises(InputError, match=message):
            EarlyExitModel.from_encoder(encoder_folder, **{"labels": 2} | options)

    @pytest.mark.parametrize("place", [None, "", 3])
    def test_refuses_what_is_not_a_folder(self, place):
        for load in (EarlyExitModel.from_classifier, EarlyExitModel.from_pretrained):
            with pytest.raises(InputError, match="is neither a folder nor a name on the hub"):
                load(place)

    def test_takes_exits_and_labels_of_numpy(self, encoder_folder):
        model = EarlyExitModel.from_encoder(encoder_folder, labels=np.array(["a", "b"]), exits=np.array([1, 3]))
        assert model.config.exit_layers == [1, 3]
        assert model.config.id2label == {0: "a", 1: "b"}

    def test_refuses_a_pooler_that_is_not_there(self, tmp_path):
        save_tiny("distilbert", tmp_path)
        with pytest.raises(InputError, match="'distilbert' have no pooler"):
            EarlyExitModel.from_encoder(tmp_path, labels=2, pooling="pooler")

    @pytest.mark.parametrize("name", ["bert", "albert", "roberta"])
    def test_a_pooler_that_was_not_saved_matters_only_where_it_is_used(self, name, tmp_path):
        encoder = tiny_encoder(name)
        encoder.pooler = None
        encoder.save_pretrained(tmp_path)
        EarlyExitModel.from_encoder(tmp_path, labels=2, pooling="mean")
        with pytest.raises(InputError, match="lacks weights, pooler"):
            EarlyExitModel.from_encoder(tmp_path, labels=2, pooling="pooler")

    def test_every_parameter_is_used(self, encoder_folder):
        """An unused parameter would stop distributed training."""
        model = EarlyExitModel.from_encoder(encoder_folder, labels=3)
        model(**tokens(0, types=True), labels=torch.tensor([0, 1, 2, 0])).loss.backward()
        assert [name for name, weights in model.named_parameters() if weights.grad is None] == []


class TestFromClassifier:
    @pytest.mark.parametrize("name", CONFIGS)
    @torch.no_grad()
    def test_last_exit_equals_the_classifier_bit_for_bit(self, name, tmp_path):
        tiny_classifier(name).save_pretrained(tmp_path)
        classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
        model = EarlyExitModel.from_classifier(tmp_path).eval()
        batch = tokens(model.config.encoder.pad_token_id or 0)
        output = model(**batch)
        assert torch.equal(output.logits, classifier(**batch).logits)
        assert output.exit_logits.shape == (4, LAYERS, 3)

    @pytest.mark.parametrize("pooling", ["mean", "first", "pooler", "attention"])
    @pytest.mark.parametrize("name", CONFIGS)
    def test_every_pooling_works_or_is_refused(self, name, pooling, tmp_path):
        tiny_classifier(name).save_pretrained(tmp_path)
        if pooling == "pooler" and not name.startswith(("albert", "bert")):
            with pytest.raises(InputError, match="have no pooler"):
                EarlyExitModel.from_classifier(tmp_path, pooling=pooling)
        else:
            model = EarlyExitModel.from_classifier(tmp_path, pooling=pooling)
            assert model(**tokens(model.config.encoder.pad_token_id or 0)).exit_logits.shape == (4, LAYERS, 3)

    def test_must_end_at_the_head_of_the_classifier(self, classifier_folder):
        with pytest.raises(InputError, match="must end at layer 3"):
            EarlyExitModel.from_classifier(classifier_folder, exits=[1, 2])

    def test_keeps_labels_and_problem(self, tmp_path):
        classifier = tiny_classifier("bert", classes=2)
        classifier.config.id2label = {0: "ham", 1: "spam"}
        classifier.config.label2id = {"ham": 0, "spam": 1}
        classifier.save_pretrained(tmp_path)
        config = EarlyExitModel.from_classifier(tmp_path).config
        assert config.id2label == {0: "ham", 1: "spam"}
        assert config.problem_type == "single_label_classification"

    def test_one_label_is_regression(self, tmp_path):
        tiny_classifier("bert", classes=1).save_pretrained(tmp_path)
        assert EarlyExitModel.from_classifier(tmp_path).config.problem_type == "regression"
