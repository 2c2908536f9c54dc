"""ExitConfig: what an encoder with a head at each exit is made of."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from exitpoll.errors import InputError

HEADS = ("mlp", "linear")
POOLINGS = ("mean", "first", "pooler")


class ExitConfig(PreTrainedConfig):
    """The encoder's own configuration and what stands on it, saved as config.json.

    Args:
        encoder: The encoder's configuration.
        exit_layers: The layers, counted from 1, after which a text may leave; all of them by default.
        head: "mlp" (one hidden layer, as in the paper) or "linear".
        shared_head: Let one head serve all exits.
        native_head: Let transformers' own classification head serve the last exit.
        pooling: What a head reads: the "mean" of the tokens, the "first" token, or the encoder's own "pooler".
        head_dropout: Dropout before a head's last linear map.
        max_length: Longest text read, in tokens.
        layer_drop: How likely each layer is to be skipped in training (LayerDrop).
        strategy: The strategy that goes with the method the heads were trained by.
        problem_type: As in transformers; regression for one label and single-label classification for more by default.
    """

    model_type = "exitpoll"
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "encoder": SubConfigSpec(config_class=AutoConfig, model_type="bert")
    }

    encoder: Any = None  # a PreTrainedConfig
    exit_layers: list[int] | None = None
    head: str = "mlp"
    shared_head: bool = False
    native_head: bool = False
    pooling: str = "mean"
    head_dropout: float = 0.1
    max_length: int = 128
    layer_drop: float = 0.0
    strategy: str | None = None
    problem_type: str | None = None

    def __post_init__(self, **kwargs: object) -> None:
        """Fill in the exits and refuse what cannot be built."""
        if "exits" in kwargs:
            raise InputError("this model was written by an older exitpoll; train it again")
        super().__post_init__(**kwargs)
        depth = self.encoder.num_hidden_layers
        if self.problem_type is None:
            self.problem_type = "regression" if self.num_labels == 1 else "single_label_classification"
        if self.exit_layers is None:
            self.exit_layers = list(range(1, depth + 1))
        layers = self.exit_layers
        if not layers or layers != sorted(set(layers)) or not 1 <= layers[0] <= layers[-1] <= depth:
            raise InputError(f"exits {layers} must be distinct layers in rising order between 1 and {depth}")
        if self.head not in HEADS:
            raise InputError(f"head '{self.head}' is unknown; choose one of: {', '.join(HEADS)}")
        if self.pooling not in POOLINGS:
            raise InputError(f"pooling '{self.pooling}' is unknown; choose one of: {', '.join(POOLINGS)}")


AutoConfig.register(ExitConfig.model_type, ExitConfig)
