"""ExitConfig: the configuration of an encoder with a head at every exit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, SupportsIndex

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from exitpoll.decide.metrics import PROBLEM_TYPES, REGRESSION, SINGLE_LABEL
from exitpoll.errors import InputError

POOLINGS = ("mean", "first", "pooler", "attention")
EXIT_ZERO = ("embeddings", "ngrams")  # what the head at exit 0 reads


class ExitConfig(PreTrainedConfig):
    """The configuration of the encoder and of its heads, saved as config.json.

    Args:
        encoder: The configuration of the encoder.
        exit_layers: The layers, counted from 1, after which a text may exit; all layers by default. 0 is an exit before
            the first layer.
        head: "mlp" (one hidden layer, as in the paper) or "linear".
        shared_head: Use one head for all exits.
        native_head: Use the classification head of transformers at the last exit.
        pooling: What a head reads: the "mean" of the tokens, the "first" token, the encoder's own "pooler", or a mean
            weighted by "attention" with a query of its own, which is learned.
        head_dropout: Dropout before the last linear layer of a head.
        max_length: Maximum length of a text, in tokens.
        layer_drop: Probability of skipping a layer in training (LayerDrop, Fan et al., 2020).
        problem_type: As in transformers; by default regression for one label, else single-label classification.
        exit_zero: What the head at exit 0 reads: the "embeddings" that enter the first layer, pooled by mean, maximum
            and minimum, or in addition "ngrams" of one and two token ids. It adds 0 to the exits; with 0 among the
            exits, the default is "embeddings".
        ngram_buckets: Rows of the n-gram table that pairs of token ids share, by a hash.
    """

    model_type = "exitpoll"
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "encoder": SubConfigSpec(config_class=AutoConfig, model_type="bert")
    }

    encoder: Any = None  # a PreTrainedConfig; a dict while config.json is read
    exit_layers: list[int] | None = None
    head: str = "mlp"
    shared_head: bool = False
    native_head: bool = False
    pooling: str = "mean"
    head_dropout: float = 0.1
    max_length: int = 128
    layer_drop: float = 0.0
    problem_type: str | None = None
    exit_zero: str | None = None
    ngram_buckets: int = 2**16

    def __post_init__(self, **kwargs: object) -> None:
        """Fill in the defaults and refuse what cannot be built."""
        from exitpoll.models.heads import HEADS  # torch is needed to build a model, not to import this module

        if "exits" in kwargs:
            raise InputError("this model was written by an older version of exitpoll; train it again")
        super().__post_init__(**kwargs)
        depth = self.encoder.num_hidden_layers
        if self.problem_type is None:
            self.problem_type = REGRESSION if self.num_labels == 1 else SINGLE_LABEL
        if self.exit_layers is None:
            self.exit_layers = list(range(1, depth + 1))
        self._settle_exit_zero()
        _check_choice("head", self.head, tuple(HEADS))
        _check_choice("pooling", self.pooling, POOLINGS)
        _check_choice("problem type", self.problem_type, PROBLEM_TYPES)
        _check_exits(self.exit_layers, depth)
        for name in ("head_dropout", "layer_drop"):
            _check_number(name, getattr(self, name), float, lowest=0, below=1)
        _check_number("max_length", self.max_length, int, lowest=3)
        _check_number("ngram_buckets", self.ngram_buckets, int, lowest=1, below=2**31)
        if set(self.id2label) != set(range(self.num_labels)):
            raise InputError(f"the classes {sorted(self.id2label)} must be numbered from 0 to {self.num_labels - 1}")

    def _settle_exit_zero(self) -> None:
        """Let the exits and what exit 0 reads follow from each other."""
        if self.exit_zero is not None:
            _check_choice("exit_zero", self.exit_zero, EXIT_ZERO)
            if isinstance(self.exit_layers, list) and 0 not in self.exit_layers:
                self.exit_layers = [0, *self.exit_layers]
        elif isinstance(self.exit_layers, list) and 0 in self.exit_layers:
            self.exit_zero = "embeddings"


def make_config(**fields: Any) -> ExitConfig:
    """Make a configuration, and refuse fields of a wrong type as fields of a wrong value are refused.

    Args:
        **fields: The fields of `ExitConfig`.

    Returns:
        The configuration.
    """
    try:
        return ExitConfig(**fields)
    except InputError:
        raise
    except Exception as error:  # transformers checks types with errors of its own
        raise InputError(f"the model cannot be configured like this: {error}") from error


def are_unnamed(id2label: Mapping[int, str]) -> bool:
    """Return whether the classes have only the names that transformers makes of their numbers.

    Args:
        id2label: The names by number.

    Returns:
        Whether all of them are LABEL_0, LABEL_1, …
    """
    return all(name == f"LABEL_{number}" for number, name in id2label.items())


def label_fields(labels: Sequence[str] | int) -> dict[str, dict]:
    """Return the class names by number and the numbers by class name, as transformers stores them.

    Args:
        labels: The class names, or the number of classes.

    Returns:
        The fields id2label and label2id of a configuration.
    """
    if isinstance(labels, str) or not isinstance(labels, int | Iterable):
        raise InputError(f"labels {labels!r:.60} must be the names of the classes, or their number")
    names = [f"LABEL_{index}" for index in range(labels)] if isinstance(labels, int) else list(labels)
    if not names or len(set(map(str, names))) < len(names):
        raise InputError(f"labels {labels!r:.60} must be one class or more, all of them different")
    return {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not among the choices."""
    if value not in choices:
        raise InputError(f"{name} '{value!s:.60}' is unknown; choose one of: {', '.join(choices)}")


def _check_exits(layers: object, depth: int) -> None:
    """Refuse exits that are not layers in increasing order."""
    if (
        not isinstance(layers, list)
        or not layers
        or any(type(layer) is not int for layer in layers)
        or layers != sorted(set(layers))
        or not 0 <= layers[0] <= layers[-1] <= depth
        or layers[-1] < 1
    ):
        raise InputError(
            f"exits {layers!s:.60} must be distinct layers in increasing order between 1 and {depth}; "
            "0, before the first layer, may precede them"
        )


def _check_number(name: str, value: object, kind: type, *, lowest: float, below: float = math.inf) -> None:
    """Refuse what is not a number in a range."""
    kinds = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not lowest <= value < below:
        number = "an integer" if kind is int else "a number"
        upper = "" if below == math.inf else f" and below {below}"
        raise InputError(f"{name} {value!s:.60} must be {number}, at least {lowest}{upper}")


AutoConfig.register(ExitConfig.model_type, ExitConfig)


def head_fields(
    exits: Sequence[int] | None,
    head: str,
    shared_head: bool,
    pooling: str,
    max_length: int,
    exit_zero: str | None,
    ngram_buckets: int,
) -> dict[str, object]:
    """Return the fields of ExitConfig that describe exits and heads, as `EarlyExitModel.from_encoder` takes them."""
    return {
        "exit_layers": None if exits is None else list_of_exits(exits),
        "head": head,
        "shared_head": shared_head,
        "pooling": pooling,
        "max_length": max_length,
        "exit_zero": exit_zero,
        "ngram_buckets": ngram_buckets,
    }


def list_of_exits(exits: Sequence[int]) -> list[int]:
    """Return the exits as a list of integers, whatever sequence they come in."""
    if isinstance(exits, str) or not isinstance(exits, Iterable):
        raise InputError(f"exits {exits!r:.60} must be a list of layers")
    return [int(layer) if isinstance(layer, SupportsIndex) else layer for layer in exits]
