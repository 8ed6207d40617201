"""The networks of `tern bench step` in PyTorch, with the same initial weights, data and losses: torchvision's ResNets and DeepLabV3 (copied,
since torchvision may not be installed), its vision transformer, the 3-D U-Net of tests/torch/test_unet3d.py, and transformers' GPT-2 and Llama without dropout."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(inputs, outputs, size, stride=1, dilation=1):
    return nn.Conv2d(inputs, outputs, size, stride, dilation * (size // 2), dilation, bias=False)


def unit(inputs, outputs, size, dilation=1):
    return nn.Sequential(conv(inputs, outputs, size, 1, dilation), nn.BatchNorm2d(outputs), nn.ReLU(True))


class Block(nn.Module):
    """torchvision's BasicBlock or Bottleneck: the shortcut is created first and registered last."""

    def __init__(self, layers, inputs, outputs, stride):
        super().__init__()
        downsample = None
        if stride != 1 or inputs != outputs:
            downsample = nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        parts = [part for layer in layers for part in (conv(*layer), nn.BatchNorm2d(layer[1]), nn.ReLU(True))]
        self.body = nn.Sequential(*parts[:-1])
        self.downsample = downsample

    def forward(self, x):
        y = self.body(x)
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


def basic(inputs, channels, stride, dilation):
    return Block([(inputs, channels, 3, stride), (channels, channels, 3)], inputs, channels, stride)


def bottleneck(inputs, channels, stride, dilation):
    layers = [(inputs, channels, 1), (channels, channels, 3, stride, dilation), (channels, 4 * channels, 1)]
    return Block(layers, inputs, 4 * channels, stride)


def backbone(block, wide, depths, stem, dilated=(False,) * 4):
    """Stages of 64 to 512 channels, times `wide` after each block; a dilated stage keeps the size."""
    parts, inputs, dilation = [*stem, nn.BatchNorm2d(64), nn.ReLU(True)], 64, 1
    if stem[0].stride[0] == 2:
        parts.append(nn.MaxPool2d(3, 2, 1))
    for stage, (depth, dilate) in enumerate(zip(depths, dilated)):
        channels, stride, first = 64 << stage, 1 if stage == 0 or dilate else 2, dilation
        dilation *= 2 if dilate else 1
        blocks = [block(inputs, channels, stride, first)]
        inputs = wide * channels
        blocks += [block(inputs, channels, 1, dilation) for _ in range(depth - 1)]
        parts.append(nn.Sequential(*blocks))
    return parts


def with_kaiming(net):
    """Draws torchvision's initial weights, after PyTorch has drawn its own."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def classifier(parts, features, classes):
    return with_kaiming(nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)))


class Pyramid(nn.Module):
    """ASPP, without dropout."""

    def __init__(self, inputs, outputs, rates):
        super().__init__()
        self.convs = nn.ModuleList([unit(inputs, outputs, 1), *(unit(inputs, outputs, 3, rate) for rate in rates)])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), *unit(inputs, outputs, 1))
        self.project = unit(5 * outputs, outputs, 1)

    def forward(self, x):
        mean = F.interpolate(self.pool(x), x.shape[-2:], mode="bilinear", align_corners=False)
        return self.project(torch.cat([one(x) for one in self.convs] + [mean], 1))


class DeepLabV3(nn.Module):
    def __init__(self, classes):
        super().__init__()
        stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False)]
        self.backbone = with_kaiming(nn.Sequential(*backbone(bottleneck, 4, (3, 4, 6, 3), stem, (False, False, True, True))))
        self.head = nn.Sequential(Pyramid(2048, 256, (12, 24, 36)), unit(256, 256, 3), nn.Conv2d(256, classes, 1))

    def forward(self, x):
        return F.interpolate(self.head(self.backbone(x)), x.shape[-2:], mode="bilinear", align_corners=False)


class Unet3d(nn.Module):
    def __init__(self, width, levels=4):
        super().__init__()

        def pair(inside, out):
            layers = [(nn.Conv3d(a, out, 3, padding=1, bias=False), nn.BatchNorm3d(out), nn.ReLU()) for a in (inside, out)]
            return nn.Sequential(*layers[0], *layers[1])

        widths = [width << i for i in range(levels)]
        self.encoder = nn.ModuleList(pair(a, b) for a, b in zip([1] + widths, widths))
        self.up, self.decoder = nn.ModuleList(), nn.ModuleList()
        for below, out in zip(widths[:0:-1], widths[-2::-1]):
            self.up.append(nn.ConvTranspose3d(below, out, 2, 2))
            self.decoder.append(pair(2 * out, out))
        self.head = nn.Conv3d(width, 1, 1)

    def forward(self, x):
        kept = []
        for i, pair in enumerate(self.encoder):
            x = pair(F.max_pool3d(x, 2) if i else x)
            kept.append(x)
        for up, pair, skip in zip(self.up, self.decoder, kept[-2::-1]):
            x = pair(torch.cat([skip, up(x)], 1))
        return self.head(x)


def attention(q, k, v, is_causal=True):
    """Of (N, T, heads, features)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if hasattr(F, "scaled_dot_product_attention"):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    else:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1) & is_causal
        y = scores.masked_fill(hidden, -math.inf).softmax(-1).to(v.dtype) @ v
    return y.transpose(1, 2).flatten(2)


def draw_truncated(p, std):
    """Draws nn.init.trunc_normal_'s numbers of PyTorch 1.13, as tern does; 2.15 draws others."""
    bound = math.erf(2 / std / math.sqrt(2))
    with torch.no_grad():
        p.uniform_(-bound, bound).erfinv_().mul_(std * math.sqrt(2)).clamp_(-2, 2)


class VitBlock(nn.Module):
    """torchvision's EncoderBlock. Its MultiheadAttention only draws the weights: attention on views of one product is faster."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.self_attention = nn.LayerNorm(width, 1e-6), nn.MultiheadAttention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width, 1e-6), nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for linear in (self.mlp[0], self.mlp[2]):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.normal_(linear.bias, std=1e-6)

    def forward(self, x):
        own = self.self_attention
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in F.linear(self.ln_1(x), own.in_proj_weight, own.in_proj_bias).chunk(3, -1))
        x = x + own.out_proj(attention(q, k, v, is_causal=False))
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    """torchvision's VisionTransformer, whose scores begin with weights other than 0."""

    def __init__(self, side, layers, width, heads, patch, classes=1000):
        super().__init__()
        self.conv_proj, self.class_token = nn.Conv2d(3, width, patch, patch), nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.empty(1, (side // patch) ** 2 + 1, width).normal_(std=0.02))
        self.layers = nn.Sequential(*(VitBlock(width, heads) for _ in range(layers)))
        self.ln, self.head = nn.LayerNorm(width, 1e-6), nn.Linear(width, classes)
        draw_truncated(self.conv_proj.weight, math.sqrt(1 / (3 * patch * patch)))
        nn.init.zeros_(self.conv_proj.bias)
        nn.init.zeros_(self.head.bias)
        draw_truncated(self.head.weight, 0.02)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embedding
        return self.head(self.ln(self.layers(x))[:, 0])


class Conv1D(nn.Module):
    """transformers' linear with a weight (in, out)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


class Gpt2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.c_attn, self.attn_c_proj = nn.LayerNorm(width), Conv1D(width, 3 * width), Conv1D(width, width)
        self.ln_2, self.c_fc, self.mlp_c_proj = nn.LayerNorm(width), Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.c_attn(self.ln_1(x)).chunk(3, -1))
        x = x + self.attn_c_proj(attention(q, k, v))
        return x + self.mlp_c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, vocabulary, positions, width, layers, heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.h = nn.Sequential(*(Gpt2Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.h(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        return F.linear(self.ln_f(x), self.wte.weight)


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaLayer(nn.Module):
    def __init__(self, width, inner, heads):
        super().__init__()
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(width, width) for _ in range(4))
        self.gate_proj, self.up_proj, self.down_proj = linear(width, inner), linear(width, inner), linear(inner, width)
        self.input_norm, self.mlp_norm = RmsNorm(width), RmsNorm(width)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x, tables):
        y = self.input_norm(x)
        q, k, v = (part(y).unflatten(-1, (self.heads, -1)) for part in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = (table.to(q.dtype) for table in tables)
        x = x + self.o_proj(attention(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v))
        y = self.mlp_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    def __init__(self, vocabulary, positions, width, layers, heads):
        super().__init__()
        inner, pairs = (width * 8 // 3 + 31) // 32 * 32, width // heads // 2
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, inner, heads) for _ in range(layers))
        self.norm, self.lm_head = RmsNorm(width), nn.Linear(width, vocabulary, bias=False)
        angles = torch.arange(positions).double()[:, None] * 1e4 ** (-torch.arange(pairs).double() / pairs)
        self.tables = [torch.cat([part, part], 1)[:, None].float() for part in (angles.cos(), angles.sin())]

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, [table[: tokens.shape[1]] for table in self.tables])
        return self.lm_head(self.norm(x))


def with_normal(net, layers):
    """Draws transformers' initial weights, as tern does: all, and again those that add to the residual stream."""
    torch.manual_seed(0)
    matrices = [(name, p) for name, p in net.named_parameters() if p.ndim == 2]
    for _, p in matrices:
        nn.init.normal_(p, 0, 0.02)
    for name, p in matrices:
        if name.endswith("c_proj.weight"):
            nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * layers))
    return net


def next_tokens(logits, labels):
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


LANGUAGE_NETS = {"gpt2": Gpt2, "llama": Llama}
# The usual numbers of these nets.
TRANSFORMERS = {**dict.fromkeys(LANGUAGE_NETS, dict(layers=4, width=256, heads=4, vocabulary=256)), "vit": dict(layers=12, width=192, heads=3, patch=16)}


def make_language(name, batch, size, rank, layers, width, heads, vocabulary):
    length = int(size or 128)
    net = with_normal(LANGUAGE_NETS[name](vocabulary, length, width, layers, heads), layers)
    count = batch * length
    tokens = (torch.arange(rank * count, (rank + 1) * count) * 2654435761 % 2**32 // 256 % vocabulary).view(batch, length)
    labels = torch.cat([tokens[:, 1:], torch.full((batch, 1), -100)], 1)
    return net, tokens, labels, next_tokens


def mlp():
    sizes = [784, 1024, 1024, 10]
    layers = [part for pair in zip(sizes, sizes[1:]) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def fashion():
    """The ResNet of examples/02_fashion.c."""
    stem = [conv(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(True)]
    stages = [basic(inputs, channels, stride, 1) for inputs, channels, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))]
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet18():
    """ResNet-18 with a stem for images of 32x32."""
    return classifier(backbone(basic, 1, (2, 2, 2, 2), [conv(3, 64, 3)]), 512, 10)


def resnet50():
    return classifier(backbone(bottleneck, 4, (3, 4, 6, 3), [nn.Conv2d(3, 64, 7, 2, 3, bias=False)]), 2048, 1000)


def bce_dice(scores, mask):
    """Binary cross entropy plus the Dice loss of each sample."""
    scores, mask = scores.float(), mask.float()
    p, axes = scores.sigmoid(), tuple(range(2, scores.ndim))
    dice = 1 - (2 * (p * mask).sum(axes) + 1e-5) / (p.sum(axes) + mask.sum(axes) + 1e-5)
    return F.binary_cross_entropy_with_logits(scores, mask) + dice.mean()


# name -> network, channels and default size of a sample, shape of its labels for a size, classes, loss
NETS = {
    "mlp": (mlp, 784, (), lambda size: (), 10, F.cross_entropy),
    "fashion": (fashion, 1, (28, 28), lambda size: (), 10, F.cross_entropy),
    "resnet18": (resnet18, 3, (32, 32), lambda size: (), 10, F.cross_entropy),
    "resnet50": (resnet50, 3, (257, 257), lambda size: (), 1000, F.cross_entropy),
    "deeplabv3": (lambda: DeepLabV3(21), 3, (257, 257), lambda size: size, 21, F.cross_entropy),
    "vit": (Vit, 3, (224, 224), lambda size: (), 1000, F.cross_entropy),
    "unet3d": (lambda: Unet3d(16), 1, (32, 64, 64), lambda size: (1, *size), 2, bce_dice),
}


def make(name, batch, size, rank, **numbers):
    """Returns network, samples, labels and loss; `size` is text as tern's --size, or None. Numbers of a transformer that are None are its own."""
    numbers = {**TRANSFORMERS.get(name, {}), **{key: number for key, number in numbers.items() if number}}
    if name in LANGUAGE_NETS:
        return make_language(name, batch, size, rank, **numbers)
    build, channels, usual, labels_of, classes, loss = NETS[name]
    sizes = tuple(map(int, size.split("x"))) if size else usual
    size = sizes * len(usual) if len(sizes) == 1 else sizes
    torch.manual_seed(0)
    net = build(size[0], **numbers) if numbers else build()
    torch.manual_seed(rank + 1)
    x, shape = torch.randn(batch, channels, *size), (batch, *labels_of(size))
    return net, x, (torch.arange(torch.Size(shape).numel()) % classes).view(shape), loss
