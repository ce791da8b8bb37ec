"""Tiny pretrained backbones with random weights, written by their library, which is imported where it is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

_TEXT = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog film sat ran was good bad very not on mat . , it ##s ##ing"
WORDS = _TEXT.split()
_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def write_vit(folder: Path, seed: int = 0, size: int = 16, **more: Any) -> Path:
    """A vision transformer with a class token, and its image processor."""
    import transformers as hf

    config = hf.ViTConfig(**_SMALL, image_size=size, patch_size=size // 4, **more)
    processor = hf.ViTImageProcessorPil(size={"height": size, "width": size}, resample=3, image_std=[0.2, 0.3, 0.4])
    return _write(folder, hf.ViTModel, config, seed, processor, add_pooling_layer=False)


def write_resnet(folder: Path, seed: int = 0) -> Path:
    """A convolutional network, whose images are resized by their shorter side and cut."""
    import transformers as hf

    config = hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    processor = hf.ConvNextImageProcessorPil(size={"shortest_edge": 28}, crop_pct=0.875, resample=2)
    return _write(folder, hf.ResNetModel, config, seed, processor)


def write_clip(folder: Path, seed: int = 0) -> Path:
    """The image half of CLIP, with a class token under another name, and a centre crop."""
    import transformers as hf

    config = hf.CLIPVisionConfig(**_SMALL, image_size=16, patch_size=4, projection_dim=16)
    processor = hf.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return _write(folder, hf.CLIPVisionModel, config, seed, processor)


def write_bert(folder: Path, seed: int = 0, words: list[str] = WORDS, **more: Any) -> Path:
    """A transformer for texts of up to 24 tokens, and its tokenizer."""
    import transformers as hf

    config = hf.BertConfig(**_SMALL, vocab_size=len(words), max_position_embeddings=24, **more)
    tokenizer = hf.BertTokenizer(vocab={word: k for k, word in enumerate(words)}, model_max_length=24)
    return _write(folder, hf.BertModel, config, seed, tokenizer, add_pooling_layer=False)


def _write(folder: Path, kind: Any, config: Any, seed: int, beside: Any, **more: Any) -> Path:
    import transformers as hf

    hf.utils.logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        kind(config, **more).save_pretrained(folder)
    beside.save_pretrained(folder)
    return folder
