"""Run any supported encoder one layer at a time.

A `Family` defines how one architecture is run. What a layer needs besides the hidden states, its context, depends on
the padding mask and the length alone, so a batch may lose, gain or reorder texts between two layers: slice the hidden
states and the mask, compute the context again and continue.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, arange, ones_like, rand
from torch.nn import functional
from transformers import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

from exitpoll.errors import InputError

TokenTensors = Mapping[str, Tensor]  # input_ids, attention_mask, token_type_ids: (texts, tokens), padded
Encoder = Any  # a PreTrainedModel; the names of its parts depend on the architecture
Head = Any  # a NativeHead; the names of its parts depend on the architecture
Context = dict[str, Any]  # what a layer needs besides the hidden states


def same(encoder: Encoder, hidden: Tensor) -> Tensor:
    """Return the hidden states as they are: layers of post-norm encoders end with a norm."""
    return hidden


def fewer_layers(config: PreTrainedConfig, depth: int) -> PreTrainedConfig:
    """Return the configuration of the same encoder without the layers above `depth`."""
    shorter = copy.deepcopy(config)
    shorter.num_hidden_layers = depth
    if getattr(shorter, "layer_types", None):
        shorter.layer_types = shorter.layer_types[:depth]
    return shorter


def own_weights(config: PreTrainedConfig, index: int) -> int:
    """Return a set of weights for every layer."""
    return index


@dataclass(frozen=True)
class Family:
    """How to run one architecture; hidden is (texts, tokens, width), mask (texts, tokens) or None if unpadded."""

    embed: Callable[[Encoder, TokenTensors], Tensor]  # tokens -> hidden states before layer 1
    context: Callable[[Encoder, Tensor, Tensor | None], Context]  # hidden, mask -> what all layers share
    layer: Callable[[Encoder, Tensor, Context, int], Tensor]  # hidden -> hidden after layer `index` (from 0)
    classify: Callable[[Head, Encoder, Tensor, Tensor | None], Tensor]  # classification head of transformers: logits
    read: Callable[[Encoder, Tensor], Tensor] = same  # hidden -> what a head reads of it
    pool: Callable[[Encoder, Tensor], Tensor] | None = None  # the encoder's own pooler: (texts, width)
    shorten: Callable[[PreTrainedConfig, int], PreTrainedConfig] = fewer_layers
    weight_set: Callable[[PreTrainedConfig, int], int] = own_weights  # which set of weights a layer (from 0) uses
    positions_after_padding: bool = False  # whether position numbers start after that of the padding token

    def shares_layers(self, config: PreTrainedConfig) -> bool:
        """Return whether all layers use the same weights, so that texts at any depth can run together."""
        layers = range(config.num_hidden_layers)
        return len(layers) > 1 and len({self.weight_set(config, index) for index in layers}) == 1

    def max_length(self, config: PreTrainedConfig) -> int:
        """Return how many tokens an encoder has positions for."""
        offset = config.pad_token_id + 1 if self.positions_after_padding else 0
        return config.max_position_embeddings - offset


# ---- BERT and its descendants -------------------------------------------------------------------------------


def bert_embed(encoder: Encoder, tokens: TokenTensors) -> Tensor:
    """Embed words, positions and token types."""
    return encoder.embeddings(input_ids=tokens["input_ids"], token_type_ids=tokens.get("token_type_ids"))


def bert_context(encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Context:
    """Expand the padding mask to the form of the attention implementation; None if nothing is padded."""
    return {"mask": create_bidirectional_mask(config=encoder.config, inputs_embeds=hidden, attention_mask=mask)}


def bert_layer(encoder: Encoder, hidden: Tensor, context: Context, index: int) -> Tensor:
    """Run one layer."""
    return encoder.encoder.layer[index](hidden, context["mask"])


def bert_pool(encoder: Encoder, hidden: Tensor) -> Tensor:
    """Apply the pooler to the first token."""
    return encoder.pooler(hidden)


def bert_classify(head: Head, encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Apply pooler, dropout and a linear layer."""
    return head.classifier(head.dropout(bert_pool(encoder, hidden)))


def sequence_classify(head: Head, encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Apply the classification head, which selects the first token itself."""
    return head.classifier(hidden)


# ---- ALBERT: one group of layers, or a few, for all depths ----------------------------------------------------------


def albert_embed(encoder: Encoder, tokens: TokenTensors) -> Tensor:
    """Embed, and project the factorized embedding to the width of the layers."""
    return encoder.encoder.embedding_hidden_mapping_in(bert_embed(encoder, tokens))


def albert_layer(encoder: Encoder, hidden: Tensor, context: Context, index: int) -> Tensor:
    """Run the layer group of this depth."""
    group = albert_weights(encoder.config, index)
    return encoder.encoder.albert_layer_groups[group](hidden, context["mask"])


def albert_weights(config: PreTrainedConfig, index: int) -> int:
    """Return the layer group of a layer; the groups are spread evenly over the depth."""
    return index * config.num_hidden_groups // config.num_hidden_layers


def albert_pool(encoder: Encoder, hidden: Tensor) -> Tensor:
    """Apply the pooler and its activation, a module of its own, to the first token."""
    return encoder.pooler_activation(encoder.pooler(hidden[:, 0]))


def albert_classify(head: Head, encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Apply pooler, dropout and a linear layer."""
    return head.classifier(head.dropout(albert_pool(encoder, hidden)))


def same_layers(config: PreTrainedConfig, depth: int) -> PreTrainedConfig:
    """Keep the number of layers: they share their weights, and the group of a layer depends on it."""
    return copy.deepcopy(config)


# ---- DistilBERT -----------------------------------------------------------------------------------------------------


def distilbert_embed(encoder: Encoder, tokens: TokenTensors) -> Tensor:
    """Embed words and positions; there are no token types."""
    return encoder.embeddings(tokens["input_ids"])


def distilbert_layer(encoder: Encoder, hidden: Tensor, context: Context, index: int) -> Tensor:
    """Run one layer."""
    return encoder.transformer.layer[index](hidden, context["mask"])


def distilbert_classify(head: Head, encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Apply linear, ReLU, dropout and linear to the first token."""
    return head.classifier(head.dropout(functional.relu(head.pre_classifier(hidden[:, 0]))))


# ---- ELECTRA --------------------------------------------------------------------------------------------------------


def electra_embed(encoder: Encoder, tokens: TokenTensors) -> Tensor:
    """Embed, and project where the embedding is narrower than the layers."""
    hidden = bert_embed(encoder, tokens)
    narrower = encoder.config.embedding_size != encoder.config.hidden_size
    return encoder.embeddings_project(hidden) if narrower else hidden


# ---- MPNet: relative position bias ----------------------------------------------------------------------------------


def mpnet_embed(encoder: Encoder, tokens: TokenTensors) -> Tensor:
    """Embed words and positions; there are no token types."""
    return encoder.embeddings(input_ids=tokens["input_ids"])


def mpnet_context(encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Context:
    """Compute the mask and the position bias, which all layers share."""
    return bert_context(encoder, hidden, mask) | {"bias": encoder.encoder.compute_position_bias(hidden)}


def mpnet_layer(encoder: Encoder, hidden: Tensor, context: Context, index: int) -> Tensor:
    """Run one layer."""
    return encoder.encoder.layer[index](hidden, context["mask"], context["bias"])[0]


# ---- DeBERTa v2 and v3: disentangled attention ----------------------------------------------------------------------


def deberta_embed(encoder: Encoder, tokens: TokenTensors) -> Tensor:
    """Embed; the embedding itself sets padded positions to zero."""
    return encoder.embeddings(
        input_ids=tokens["input_ids"],
        token_type_ids=tokens.get("token_type_ids"),
        mask=tokens.get("attention_mask"),
    )


def deberta_context(encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Context:
    """Compute the pairwise mask, the relative positions and their embeddings."""
    if mask is None:
        mask = ones_like(hidden[..., 0])
    return {
        "tokens": mask,
        "mask": encoder.encoder.get_attention_mask(mask),
        "positions": encoder.encoder.get_rel_pos(hidden),
        "embeddings": encoder.encoder.get_rel_embedding(),
    }


def deberta_layer(encoder: Encoder, hidden: Tensor, context: Context, index: int) -> Tensor:
    """Run one layer; in some checkpoints a convolution is added to the first."""
    after, _ = encoder.encoder.layer[index](
        hidden, context["mask"], relative_pos=context["positions"], rel_embeddings=context["embeddings"]
    )
    if index == 0 and encoder.encoder.conv is not None:
        return encoder.encoder.conv(hidden, after, context["tokens"])
    return after


def deberta_classify(head: Head, encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Apply the context pooler, dropout and a linear layer."""
    return head.classifier(head.dropout(head.pooler(hidden)))


# ---- ModernBERT: pre-norm, rotary positions, local and global layers ------------------------------------------------


def modernbert_embed(encoder: Encoder, tokens: TokenTensors) -> Tensor:
    """Embed words; positions are rotary embeddings inside the layers."""
    return encoder.embeddings(input_ids=tokens["input_ids"])


def modernbert_context(encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Context:
    """Compute mask and rotary embeddings for local and global attention."""
    config = encoder.config
    positions = arange(hidden.shape[1], device=hidden.device).unsqueeze(0)  # (1, tokens)
    masks = {
        "full_attention": create_bidirectional_mask,
        "sliding_attention": create_bidirectional_sliding_window_mask,
    }
    return {
        kind: {
            "attention_mask": masks[kind](config=config, inputs_embeds=hidden, attention_mask=mask),
            "position_embeddings": encoder.rotary_emb(hidden, positions, kind),
        }
        for kind in sorted(set(config.layer_types))
    }


def modernbert_layer(encoder: Encoder, hidden: Tensor, context: Context, index: int) -> Tensor:
    """Run one layer with the mask and rotary embeddings of its kind of attention."""
    layer = encoder.layers[index]
    return layer(hidden, **context[layer.attention_type])


def modernbert_read(encoder: Encoder, hidden: Tensor) -> Tensor:
    """Normalize the residual stream before a head reads it, as the encoder does after its last layer."""
    return encoder.final_norm(hidden)


def modernbert_classify(head: Head, encoder: Encoder, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Pool as configured, then apply the prediction head, dropout and a linear layer."""
    if encoder.config.classifier_pooling == "cls":
        pooled = hidden[:, 0]
    else:
        kept = ones_like(hidden[..., 0]) if mask is None else mask.to(hidden.dtype)  # (texts, tokens)
        pooled = (hidden * kept.unsqueeze(-1)).sum(dim=1) / kept.sum(dim=1, keepdim=True)
    return head.classifier(head.drop(head.head(pooled)))


# ---- the table ------------------------------------------------------------------------------------------------------

_BERT = Family(bert_embed, bert_context, bert_layer, bert_classify, pool=bert_pool)
_ROBERTA = Family(bert_embed, bert_context, bert_layer, sequence_classify, pool=bert_pool, positions_after_padding=True)

# By the model_type of transformers. A new encoder is one row here.
FAMILIES: dict[str, Family] = {
    "albert": Family(
        albert_embed,
        bert_context,
        albert_layer,
        albert_classify,
        pool=albert_pool,
        shorten=same_layers,
        weight_set=albert_weights,
    ),
    "bert": _BERT,
    "camembert": _ROBERTA,
    "deberta-v2": Family(deberta_embed, deberta_context, deberta_layer, deberta_classify),
    "distilbert": Family(distilbert_embed, bert_context, distilbert_layer, distilbert_classify),
    "electra": Family(electra_embed, bert_context, bert_layer, sequence_classify),
    "modernbert": Family(
        modernbert_embed, modernbert_context, modernbert_layer, modernbert_classify, read=modernbert_read
    ),
    "mpnet": Family(
        mpnet_embed, mpnet_context, mpnet_layer, sequence_classify, pool=bert_pool, positions_after_padding=True
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}


def family_of(config: PreTrainedConfig) -> Family:
    """Look up how to run an encoder.

    Args:
        config: The encoder's configuration.

    Returns:
        The family of its model type.

    Raises:
        InputError: The model type is not in the table; the message lists those that are.
    """
    if config.model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise InputError(f"encoders of type '{config.model_type}' are not supported; known types: {known}")
    return FAMILIES[config.model_type]


def walk(encoder: Encoder, tokens: TokenTensors, depth: int, *, drop: float = 0.0) -> Iterator[Tensor]:
    """Run an encoder layer by layer.

    Args:
        encoder: A transformers encoder of a known family.
        tokens: The output of the tokenizer, padded to one length.
        depth: The number of layers to run.
        drop: Probability of skipping a layer (LayerDrop, Fan et al., 2020).

    Yields:
        The hidden states that enter layer 1, and those after layers 1, 2, … depth: (texts, tokens, width).
    """
    family = family_of(encoder.config)
    hidden = family.embed(encoder, tokens)
    yield hidden
    context = family.context(encoder, hidden, tokens.get("attention_mask"))
    for index in range(depth):
        if drop == 0.0 or rand(()) >= drop:
            hidden = family.layer(encoder, hidden, context, index)
        yield hidden
