"""ExitConfig: the configuration of an encoder with a head at every exit."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from exitpoll.decide.metrics import REGRESSION, SINGLE_LABEL
from exitpoll.errors import InputError

POOLINGS = ("mean", "first", "pooler")


class ExitConfig(PreTrainedConfig):
    """The configuration of the encoder and of its heads, saved as config.json.

    Args:
        encoder: The configuration of the encoder.
        exit_layers: The layers, counted from 1, after which a text may exit; all layers by default.
        head: "mlp" (one hidden layer, as in the paper) or "linear".
        shared_head: Use one head for all exits.
        native_head: Use the classification head of transformers at the last exit.
        pooling: What a head reads: the "mean" of the tokens, the "first" token, or the encoder's own "pooler".
        head_dropout: Dropout before the last linear layer of a head.
        max_length: Maximum length of a text, in tokens.
        layer_drop: Probability of skipping a layer in training (LayerDrop, Fan et al., 2020).
        problem_type: As in transformers; by default regression for one label, else single-label classification.
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
        layers = self.exit_layers
        if not layers or layers != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= depth:
            raise InputError(f"exits {layers} must be distinct layers in increasing order between 1 and {depth}")
        if self.head not in HEADS:
            raise InputError(f"head '{self.head}' is unknown; choose one of: {', '.join(HEADS)}")
        if self.pooling not in POOLINGS:
            raise InputError(f"pooling '{self.pooling}' is unknown; choose one of: {', '.join(POOLINGS)}")


AutoConfig.register(ExitConfig.model_type, ExitConfig)
