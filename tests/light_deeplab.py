"""DeepLabV3 in PyTorch on a backbone that torchvision does not have: dilated basic blocks after a small
stem."""
import torch
from torch import nn
from torchvision.models.segmentation import deeplabv3


class LightBlock(nn.Module):
    """A basic block with dilation."""

    def __init__(self, inside, out, stride, dilation):
        super().__init__()
        downsample = None
        if stride != 1 or inside != out:
            downsample = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.conv1 = nn.Conv2d(inside, out, 3, stride, dilation, dilation, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, dilation, dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = downsample

    def forward(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + shortcut)


class LightBackbone(nn.Sequential):
    """Each stage has a stride, and a dilation for its first block and one for its second."""

    def __init__(self, channels, strides, dilations):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.relu = nn.ReLU()
        inside = channels[0]
        for i, out in enumerate(channels):
            first, second = dilations[i]
            stage = nn.Sequential(LightBlock(inside, out, strides[i], first), LightBlock(out, out, 1, second))
            self.add_module(f"layer{i + 1}", stage)
            inside = out

    def forward(self, x):
        return {"out": super().forward(x)}


def light_deeplab(channels, strides, dilations, rates, head_channels, classes):
    """Returns the model, initialised as torchvision does."""
    backbone = LightBackbone(channels, strides, dilations)
    for part in backbone.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    out = head_channels
    head = nn.Sequential(deeplabv3.ASPP(channels[-1], rates, out), nn.Conv2d(out, out, 3, padding=1, bias=False),
                         nn.BatchNorm2d(out), nn.ReLU(), nn.Conv2d(out, classes, 1))
    return deeplabv3.DeepLabV3(backbone, head)
