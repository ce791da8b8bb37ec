"""Adapters of low rank beside the layers of a backbone, by the package ``peft``."""

from __future__ import annotations

import warnings

from idiolect.core.errors import InputError, listed
from idiolect.core.import_path import optional
from idiolect.models.pretrained.backbone import Backbone
from idiolect.models.pretrained.settings import LoRA

_USUAL = (("query", "value"), ("q_proj", "v_proj"), ("q_lin", "v_lin"), ("q", "v"), ("qkv",), ("c_attn",))
"""The names that layers of queries and values have, which the paper adapts."""
_ADAPTABLE = ("Linear", "Conv1D", "Conv2d", "Embedding")


def add_adapters(backbone: Backbone, lora: LoRA, what: str) -> None:
    """Put adapters beside layers of a backbone; they alone train. Their first values are drawn by torch.

    Args:
        backbone: whose weights are frozen.
        lora: which.
        what: the model, for messages.

    Raises:
        InputError: the package is not installed, or no layer is meant.
    """
    peft = optional("peft", "pretrained", f"{what} with adapt=lora")
    layers = {name.rpartition(".")[2] for name, m in backbone.module.named_modules() if type(m).__name__ in _ADAPTABLE}
    known = listed(sorted(layers - {""}), 12)
    targets = lora.targets or next((names for names in _USUAL if layers.issuperset(names)), ())
    if not targets:
        raise InputError(f"{what}: which of its layers to adapt is not known: name some, joined by +, as "
                         f"adapt=lora(targets={min(layers, default='query')}); it has {known}")  # fmt: skip
    if absent := [name for name in targets if name not in layers]:
        raise InputError(f"{what}: it has no layer {absent[0]} to adapt: name some of {known}")
    config = peft.LoraConfig(
        r=lora.r, lora_alpha=lora.alpha or 2 * lora.r, lora_dropout=lora.dropout, target_modules=[*targets]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers whose weights are stored the other way round
        peft.inject_adapter_in_model(config, backbone.module)
