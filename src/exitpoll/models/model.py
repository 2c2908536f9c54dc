"""EarlyExitModel: an encoder with a head at every exit."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ModelOutput

from exitpoll.decide.metrics import SINGLE_LABEL
from exitpoll.errors import InputError
from exitpoll.models.config import ExitConfig, head_fields, label_fields, list_of_exits, make_config
from exitpoll.models.encoders import TokenTensors, family_of, walk
from exitpoll.models.exit_zero import POOLED, NgramTable, ZeroHead, mean_over_tokens, pool_embeddings
from exitpoll.models.heads import HEADS, Attention, NativeHead
from exitpoll.models.losses import relevancy
from exitpoll.models.pretrained import (
    check_complete,
    encoder_folder,
    load_body,
    read_any_config,
    read_config,
    screen_config,
)
from exitpoll.models.screening import check_weights, download_options
from exitpoll.models.tokenizer import full_length, load_tokenizer


@dataclass
class EarlyExitOutput(ModelOutput):
    """The logits of every exit; those of the last one also under the name that a plain classifier uses."""

    loss: Tensor | None = None  # ()
    logits: Tensor | None = None  # (texts, classes), of the last exit
    exit_logits: Tensor | None = None  # (texts, exits, classes)


class EarlyExitModel(PreTrainedModel):
    """An encoder with a head at every exit; a forward pass runs all layers and all heads."""

    config_class = ExitConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _no_split_modules: Sequence[str] = ()

    def __init__(self, config: ExitConfig, body: PreTrainedModel | None = None) -> None:
        """Build a model with untrained heads; see also `from_encoder`, `from_classifier` and `from_pretrained`.

        Args:
            config: What to build.
            body: The encoder or, with `native_head`, the classifier to build on; an untrained one by default.
        """
        super().__init__(config)
        self.family = family_of(config.encoder)
        if body is None:
            auto_class = AutoModelForSequenceClassification if config.native_head else AutoModel
            body = auto_class.from_config(config.encoder, trust_remote_code=False)
        self.encoder = body.base_model
        self.native = NativeHead(body) if config.native_head else None
        self._drop_unused_pooler()
        self.heads = nn.ModuleList(self._new_head(config.encoder.hidden_size) for _ in range(self._head_count()))
        attending = self._head_count() if config.pooling == "attention" else 0
        self.attentions = nn.ModuleList(Attention(config.encoder.hidden_size) for _ in range(attending))
        if self.has_exit_zero:
            self.heads.insert(0, self._new_zero_head())
            self._number_attentions()
        self.post_init()

    @property
    def has_exit_zero(self) -> bool:
        """Whether texts may exit before the first layer."""
        return self.config.exit_layers[0] == 0

    def _number_attentions(self) -> None:
        """Let the attention of an exit have its number, as its head has: exit 0 has none."""
        if len(self.attentions):
            self.attentions.insert(0, nn.Identity())

    def _new_head(self, width: int) -> nn.Module:
        """Return an untrained head that reads vectors of a width."""
        return HEADS[self.config.head](width, self.config.num_labels, self.config.head_dropout)

    def _new_zero_head(self) -> ZeroHead:
        """Return an untrained head for exit 0."""
        config = self.config
        ngrams = None
        if config.exit_zero == "ngrams":
            ngrams = NgramTable(config.encoder.vocab_size, config.ngram_buckets, config.num_labels)
        return ZeroHead(self._new_head(POOLED * config.encoder.hidden_size), ngrams)

    def _drop_unused_pooler(self) -> None:
        """Remove the pooler of the encoder if no head uses it."""
        has_pooler = self.family.pool is not None and self.encoder.pooler is not None
        if self.config.pooling == "pooler" and not has_pooler:
            raise InputError(
                f"encoders of type '{self.config.encoder.model_type}' have no pooler here; use mean or first"
            )
        if self.config.pooling != "pooler" and self.native is None and has_pooler:
            self.encoder.pooler = None

    def _head_count(self) -> int:
        """Return the number of heads besides exit 0 and the native one: one for all exits, or one for every exit."""
        own = len(self.config.exit_layers) - int(self.has_exit_zero) - int(self.config.native_head)
        return min(own, 1) if self.config.shared_head else own

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path, *arguments: Any, **named: Any) -> Any:
        """Load a model that `save_pretrained` wrote; nothing is unpickled.

        Args:
            name_or_folder: A hub name or a local folder.
            *arguments: As in transformers.
            **named: As in transformers.

        Returns:
            The model, in evaluation mode; with `output_loading_info`, also the loading report of transformers.
        """
        with_report = named.pop("output_loading_info", False)
        options = download_options(named)
        screen_config(name_or_folder, options)
        _check_type(name_or_folder, named.get("config") or read_any_config(name_or_folder, options))
        check_weights(name_or_folder, options, named.get("variant"))
        try:
            model, report = super().from_pretrained(
                name_or_folder, *arguments, **named | {"use_safetensors": True, "output_loading_info": True}
            )
        except InputError:
            raise
        except Exception as error:  # a broken file raises whatever its reader stumbles on
            raise InputError(f"the model of '{name_or_folder}' cannot be loaded: {error}") from error
        check_complete(name_or_folder, report["missing_keys"])
        return (model, report) if with_report else model

    @classmethod
    def from_encoder(
        cls,
        name_or_folder: str | Path,
        *,
        labels: Sequence[str] | int,
        exits: Sequence[int] | None = None,
        head: str = "mlp",
        shared_head: bool = False,
        pooling: str = "mean",
        problem_type: str = SINGLE_LABEL,
        max_length: int = 128,
        exit_zero: str | None = None,
        ngram_buckets: int = 2**16,
        dtype: torch.dtype = torch.float32,
    ) -> EarlyExitModel:
        """Add untrained heads to a pretrained encoder.

        Args:
            name_or_folder: A hub name or a local folder of transformers; or `embedded`, the encoder of the extra demo.
            labels: The class names, or the number of classes.
            exits: The layers after which a text may exit; all by default. Layers above the last one are not loaded. 0
                is an exit before the first layer.
            head: "mlp" or "linear".
            shared_head: Use one head for all exits.
            pooling: "mean", "first", "pooler" or "attention".
            problem_type: As in transformers: single_label_classification, multi_label_classification or regression.
            max_length: Maximum length of a text, in tokens.
            exit_zero: Adds an exit before the first layer, whose head reads "embeddings" or in addition "ngrams".
            ngram_buckets: Rows of the n-gram table that pairs of token ids share.
            dtype: Type of the weights.

        Returns:
            A model with a pretrained encoder and untrained heads.
        """
        name_or_folder = encoder_folder(name_or_folder)
        encoder = read_config(name_or_folder)
        if exits is not None:
            exits = list_of_exits(exits)
            make_config(encoder=encoder, exit_layers=exits)  # checks the exits against the full encoder
            encoder = family_of(encoder).shorten(encoder, max(exits))
        heads = head_fields(exits, head, shared_head, pooling, max_length, exit_zero, ngram_buckets)
        config = make_config(encoder=encoder, **heads, problem_type=problem_type, **label_fields(labels))
        optional = () if pooling == "pooler" else ("pooler",)
        return cls(config, load_body(AutoModel, name_or_folder, encoder, dtype, optional)).to(dtype)

    @classmethod
    def from_classifier(
        cls,
        name_or_folder: str | Path,
        *,
        labels: Sequence[str] | None = None,
        exits: Sequence[int] | None = None,
        head: str = "mlp",
        shared_head: bool = False,
        pooling: str = "mean",
        max_length: int | None = None,
        exit_zero: str | None = None,
        ngram_buckets: int = 2**16,
        dtype: torch.dtype = torch.float32,
    ) -> EarlyExitModel:
        """Add untrained heads to a fine-tuned classifier, whose own head becomes the last one.

        Args:
            name_or_folder: A hub name or a local folder of an AutoModelForSequenceClassification.
            labels: The class names, in the order of the classifier's logits; its own by default.
            exits: The layers after which a text may exit; all by default. The last layer must be among them.
            head: "mlp" or "linear", for the new heads.
            shared_head: Use one new head for all exits but the last.
            pooling: "mean", "first", "pooler" or "attention", for the new heads.
            max_length: Maximum length of a text, in tokens; by default what the classifier reads, which is as much as
                its tokenizer and its positions allow.
            exit_zero: Adds an exit before the first layer, whose head reads "embeddings" or in addition "ngrams".
            ngram_buckets: Rows of the n-gram table that pairs of token ids share.
            dtype: Type of the weights.

        Returns:
            A model whose last exit gives exactly the logits of the classifier.
        """
        encoder = read_config(name_or_folder)
        depth = encoder.num_hidden_layers
        if exits is not None and depth not in list_of_exits(exits):
            raise InputError(f"exits {list(exits)} must end at layer {depth}, where the head of the classifier is")
        if max_length is None:
            max_length = full_length(encoder, _tokenizer_of(name_or_folder))
        heads = head_fields(exits, head, shared_head, pooling, max_length, exit_zero, ngram_buckets)
        names = {"id2label": encoder.id2label, "label2id": encoder.label2id} if labels is None else label_fields(labels)
        if len(names["id2label"]) != encoder.num_labels:
            raise InputError(f"the classifier has {encoder.num_labels} classes, not {len(names['id2label'])}")
        config = make_config(encoder=encoder, **heads, native_head=True, problem_type=encoder.problem_type, **names)
        return cls(config, load_body(AutoModelForSequenceClassification, name_or_folder, encoder, dtype)).to(dtype)

    def with_exit_zero(self, exit_zero: str = "ngrams", ngram_buckets: int = 2**16) -> EarlyExitModel:
        """Return a copy with one more exit, before the first layer, whose head is untrained.

        `train` with the schedule "exit-zero" trains that head alone.

        Args:
            exit_zero: What the head reads: "embeddings", or in addition "ngrams".
            ngram_buckets: Rows of the n-gram table that pairs of token ids share.

        Returns:
            The copy; its other exits give the same logits.
        """
        if self.has_exit_zero:
            raise InputError("the model has an exit 0 already")
        model = copy.deepcopy(self)
        added = {"exit_zero": exit_zero, "ngram_buckets": ngram_buckets}
        model.config = make_config(**self.config.to_dict() | added)
        head = model._new_zero_head().apply(model._init_weights).to(self.device, self.dtype)
        model.heads.insert(0, head.train(self.training))
        model._number_attentions()
        return model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> EarlyExitOutput | tuple[Tensor, ...]:
        """Run all layers up to the last exit, and all heads.

        Args:
            input_ids: (texts, tokens)
            attention_mask: (texts, tokens), 1 for tokens and 0 for padding; None if nothing is padded.
            token_type_ids: (texts, tokens), for pairs.
            labels: (texts,), or (texts, classes) for multi-label; the output then has the relevancy loss.
            return_dict: If False, return a plain tuple.

        Returns:
            The logits of the last exit and of all exits.
        """
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        tokens = {name: tensor for name, tensor in given.items() if tensor is not None}
        exit_logits = torch.stack(
            [self.logits_at(number, hidden, attention_mask, input_ids) for number, hidden in self.walk_exits(tokens)],
            dim=1,
        )  # (texts, exits, classes)
        loss = None if labels is None else relevancy(exit_logits, labels, problem_type=self.config.problem_type)
        output = EarlyExitOutput(loss=loss, logits=exit_logits[:, -1], exit_logits=exit_logits)
        return output.to_tuple() if return_dict is False else output

    def walk_exits(self, tokens: TokenTensors) -> Iterator[tuple[int, Tensor]]:
        """Run the encoder up to the last exit.

        Args:
            tokens: The output of the tokenizer, padded to one length.

        Yields:
            The number of an exit, from 0, and the hidden states that its head reads, (texts, tokens, width).
        """
        numbers = {layer: number for number, layer in enumerate(self.config.exit_layers)}
        drop = self.config.layer_drop if self.training else 0.0
        for layer, hidden in enumerate(walk(self.encoder, tokens, self.config.exit_layers[-1], drop=drop)):
            if layer in numbers:
                yield numbers[layer], self.read(layer, hidden)

    def read(self, layer: int, hidden: Tensor) -> Tensor:
        """Return what a head reads of the hidden states after a layer; embeddings, before the first, as they are."""
        return hidden if layer == 0 else self.family.read(self.encoder, hidden)

    def logits_at(
        self, exit_number: int, hidden: Tensor, mask: Tensor | None, input_ids: Tensor | None = None
    ) -> Tensor:
        """Compute the logits of one exit.

        Args:
            exit_number: Number of the exit, from 0.
            hidden: The hidden states that `walk_exits` yielded for it, (texts, tokens, width).
            mask: (texts, tokens), or None if nothing is padded.
            input_ids: (texts, tokens), needed before the first layer only, for n-grams.

        Returns:
            Logits, (texts, classes).
        """
        if self.config.exit_layers[exit_number] == 0:
            return self.logits_at_zero(hidden, mask, input_ids)
        if self.is_native(exit_number):
            return self.family.classify(self.native, self.encoder, hidden, mask)
        return self.head_at(exit_number)(self.pool(exit_number, hidden, mask))

    def is_native(self, exit_number: int) -> bool:
        """Return whether the head of an exit is the classifier's own."""
        return self.native is not None and exit_number == len(self.config.exit_layers) - 1

    def logits_at_zero(self, hidden: Tensor, mask: Tensor | None, input_ids: Tensor | None) -> Tensor:
        """Compute the logits of exit 0, before the first layer.

        Args:
            hidden: The embeddings that enter the first layer, (texts, tokens, width).
            mask: (texts, tokens), or None if nothing is padded.
            input_ids: (texts, tokens), needed for n-grams only.

        Returns:
            Logits, (texts, classes).
        """
        return self.heads[0](pool_embeddings(hidden, mask), mask, input_ids)

    def head_at(self, exit_number: int) -> nn.Module:
        """Return the head of an exit, counted from 0."""
        shared = self.config.shared_head and self.config.exit_layers[exit_number] > 0
        return self.heads[int(self.has_exit_zero) if shared else exit_number]

    def attention_at(self, exit_number: int) -> Attention:
        """Return the attention of an exit after a layer, for heads that pool by attention."""
        return cast(Attention, self.attentions[int(self.has_exit_zero) if self.config.shared_head else exit_number])

    def pool(self, exit_number: int, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Pool the tokens of every text for the head of an exit: (texts, tokens, width) -> (texts, width)."""
        if self.config.pooling == "mean":
            return mean_over_tokens(hidden, mask)
        if self.config.pooling == "attention":
            return self.attention_at(exit_number)(hidden, mask)
        if self.config.pooling == "first":
            return hidden[:, 0]
        assert self.family.pool is not None
        return self.family.pool(self.encoder, hidden)


def _tokenizer_of(name_or_folder: str | Path) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a classifier; None if it has none that can be read."""
    try:
        return load_tokenizer(name_or_folder)
    except InputError:
        return None


def _check_type(name_or_folder: str | Path, config: PreTrainedConfig) -> None:
    """Refuse a model of another type, whose heads transformers would initialize at random."""
    if not isinstance(config, ExitConfig):
        raise InputError(f"'{name_or_folder}' is not an exitpoll model (model_type: {config.model_type})")


AutoModelForSequenceClassification.register(ExitConfig, EarlyExitModel)
