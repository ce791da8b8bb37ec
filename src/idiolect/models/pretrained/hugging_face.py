"""Backbones of the package ``transformers``, for texts and for images."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from idiolect.core.errors import InputError
from idiolect.core.files import expanded, expanded_text
from idiolect.core.import_path import optional
from idiolect.core.randomness import seeded
from idiolect.models.pretrained.backbone import Backbone, check_features
from idiolect.models.pretrained.pixels import ImageForm, Pixels
from idiolect.models.pretrained.settings import Pretrained

_MODES: dict[int, Literal["nearest-exact", "bilinear", "bicubic"]] = {0: "nearest-exact", 2: "bilinear", 3: "bicubic"}
"""By Pillow's numbers."""
_CLASS_TOKENS = ("cls_token", "class_embedding", "class_token")
_UNUSED = re.compile(r"(^|\.)(pooler|head|classifier|mask_token)\b")
"""Weights that features do not need."""
_OTHERS = ("vision_config", "audio_config", "num_channels", "image_size", "patch_size", "num_mel_bins", "conv_kernel")
"""Settings of networks for images or sound."""
_NEAR = 0.012
"""Our images may differ from the library's by this share of the scale: it rounds to 8 bits once or twice."""


def load(settings: Pretrained) -> Backbone:
    """Read a backbone from a folder, from the library's cache, or from the hub.

    Raises:
        InputError: the library is not installed, there is no such backbone, or it cannot be used.
    """
    what = settings.title
    transformers = optional("transformers", "pretrained", what)
    place, file = place_of(settings)
    with quiet(transformers), seeded(0):  # weights that nothing needs and no file has are drawn
        config = read(transformers.AutoConfig, place, what)
        module = _module(transformers, place, file, config, what)
        if module.main_input_name == "pixel_values":
            pixels = _pixels(transformers, place, config, what)
        elif module.main_input_name == "input_ids":
            pixels = None
        else:
            raise InputError(f"{what} takes {module.main_input_name}: name a backbone for texts or images")
        first = _first(module)
        pooling = settings.pooling or ("cls" if pixels is not None and first else "mean")
        if pooling == "cls" and pixels is not None and not first:
            raise InputError(f"{what} has no class token: leave pooling out, or write pooling=mean")
        backbone = Backbone(module.eval(), pixels, pooling, first, _about(config))
        check_features(backbone, what, "choose another backbone")
    return backbone


def is_for_texts(settings: Pretrained) -> bool:
    """Whether a backbone takes texts for certain, by its configuration: to read the network takes seconds.

    Raises:
        InputError: the library is not installed, or there is no such backbone.
    """
    transformers = optional("transformers", "pretrained", settings.title)
    place, _ = place_of(settings)
    with quiet(transformers):
        config = read(transformers.AutoConfig, place, settings.title)
        known = transformers.models.auto.tokenization_auto.TOKENIZER_MAPPING_NAMES
    return config.model_type in known and hasattr(config, "vocab_size") and not any(hasattr(config, o) for o in _OTHERS)


def place_of(settings: Pretrained) -> tuple[str, Path | None]:
    """The folder or name that is read, and a file of weights if one is given.

    Raises:
        InputError: a folder or file is not there.
    """
    what, place, file = settings.title, expanded_text(settings.name), None
    if settings.weights is not None:
        weights = expanded(settings.weights)
        if weights.is_dir():
            place = str(weights)
        elif weights.is_file():
            file = weights
        else:
            raise InputError(f"{what}: there is no file or folder weights={settings.weights}: give one that is there")
    if not os.path.isdir(place) and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", place):
        raise InputError(
            f"{what}: there is no folder {place}: give a folder that save_pretrained wrote, or a name on the Hugging "
            "Face hub, owner/name"
        )
    return place, file


def read(kind: Any, place: str, what: str, **more: Any) -> Any:
    """What a class of the library reads from a place; it never runs code that comes with a backbone.

    Raises:
        InputError: it is not there, or not in order.
    """
    try:
        return kind.from_pretrained(place, trust_remote_code=False, local_files_only=os.path.isdir(place), **more)
    except Exception as error:
        where = f"folder {place}" if os.path.isdir(place) else f"name {place} on the Hugging Face hub"
        raise InputError(
            f"{what} cannot be read from the {where} ({_line(error)}): check the name, or give the folder of a "
            "backbone that save_pretrained wrote"
        ) from error


def _module(transformers: Any, place: str, file: Path | None, config: Any, what: str) -> nn.Module:
    """The network with its weights.

    Raises:
        InputError: the weights are those of another network.
    """
    more: dict[str, Any] = {"config": config, "dtype": torch.float32, "output_loading_info": True,
                            "ignore_mismatched_sizes": True}  # fmt: skip
    if file is None:
        module, report = read(transformers.AutoModel, place, what, **more)
    else:
        weights = _weights(file, what)
        try:
            with torch.device("meta"):
                kind = type(transformers.AutoModel.from_config(config))
            module, report = kind.from_pretrained(None, state_dict=weights, **more)
        except Exception as error:
            raise InputError(f"{what}: {file} cannot be read into it ({_line(error)}): give its own weights") from error
    source = str(file or place)
    absent = [name for name in report["missing_keys"] if not _UNUSED.search(name)]
    other = [entry[0] if isinstance(entry, tuple) else entry for entry in report["mismatched_keys"]]
    if absent or other:
        first = f"has no {sorted(absent)[0]}" if absent else f"has another shape of {sorted(other)[0]}"
        raise InputError(f"{what}: {source} has the weights of another network: it {first}; give its own weights")
    if getattr(config, "is_encoder_decoder", False):
        module = module.get_encoder()
    return module  # type: ignore[no-any-return]


def _weights(file: Path, what: str) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        weights = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"{what}: {file} is not a file of weights ({_line(error)}): give one ending in .safetensors, or what "
            "torch.save wrote of a state_dict"
        ) from error
    if not isinstance(weights, Mapping) or not all(isinstance(w, Tensor) for w in weights.values()):
        raise InputError(f"{what}: {file} does not hold the tensors of a network by name: give a state_dict")
    return dict(weights)


def _about(config: Any) -> str:
    """What a network computes, without where and by which version it was written."""
    settings = config.to_dict()
    for name in ("_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"):
        settings.pop(name, None)
    return json.dumps(settings, sort_keys=True, default=str)


def _first(module: nn.Module) -> int:
    """How many tokens come before those of an image's places: the class token and others; 0 if there is none."""
    has_class = any(name.rpartition(".")[2] in _CLASS_TOKENS for name, _ in module.named_parameters())
    if not has_class:
        return 0
    others = [name.rpartition(".")[2] for name, _ in module.named_parameters()]
    registers = int(getattr(module.config, "num_register_tokens", 0) or 0)
    return 1 + registers + ("distillation_token" in others)


def _pixels(transformers: Any, place: str, config: Any, what: str) -> Pixels:
    """What the library's own image processor does, as a part of the network.

    Raises:
        InputError: there is none, or it does something else besides.
    """
    processor = read(transformers.AutoImageProcessor, place, what)
    about = processor.to_dict()
    resample = about.get("resample")
    mode = _MODES.get(int(resample if resample is not None else 2), "bicubic")
    crop = about.get("crop_size") if about.get("do_center_crop") else None
    resize = _size(about.get("size")) if about.get("do_resize", True) else None
    if (share := getattr(processor, "crop_pct", None)) and isinstance(resize, int):  # of ConvNeXt and ResNet
        crop, resize = (resize, int(resize / share)) if resize < 384 else (None, (resize, resize))
    normalise = about.get("do_normalize", True)
    channels = int(getattr(config, "num_channels", 3) or 3)
    form = ImageForm(
        resize,
        None if crop is None else _height_and_width(crop),
        mode,
        tuple(map(float, about["image_mean"])) if normalise else (0.0,) * channels,
        tuple(map(float, about["image_std"])) if normalise else (1.0,) * channels,
        bool(about.get("do_rescale", True)),
        channels,
    )
    pixels = Pixels(form)
    image_HWC = np.random.default_rng(0).integers(0, 256, (40, 56, channels), dtype=np.uint8)
    ours = pixels(torch.from_numpy(image_HWC).permute(2, 0, 1)[None] / 255)
    theirs = processor(image_HWC, input_data_format="channels_last", return_tensors="pt")["pixel_values"]
    scale = (1 if form.scale else 255) / min(form.std)
    if ours.shape != theirs.shape or float((ours - theirs).abs().max()) > _NEAR * scale:
        raise InputError(f"{what}: its {type(processor).__name__} does more with images than resize, cut and normalise "
                         "them, which idiolect does not know: choose another backbone")  # fmt: skip
    return pixels


def _size(size: Any) -> tuple[int, int] | int | None:
    if isinstance(size, int) or size is None:
        return size
    if (short := size.get("shortest_edge")) is not None:
        return int(short)
    return _height_and_width(size)


def _height_and_width(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size["height"]), int(size["width"]))


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Without the library's notes and progress bars: what matters is said in our own sentences."""
    chatter = transformers.utils.logging
    level, bars = chatter.get_verbosity(), chatter.is_progress_bar_enabled()
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level
    chatter.set_verbosity(chatter.CRITICAL)
    hub.setLevel(logging.CRITICAL)
    chatter.disable_progress_bar()
    try:
        yield
    finally:
        chatter.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            chatter.enable_progress_bar()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
