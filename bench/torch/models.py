"""The networks of measure.py: the MLP and the ResNet-18 of bench/peers, and a transformer."""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "peers"))
import nets  # noqa: E402

VOCABULARY, WIDTH, LAYERS, TOKENS = 1000, 384, 5, 32


class Transformer(nn.Module):
    """A causal language model of 9.7 million parameters."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
                                    for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
        x = self.words(tokens) + self.places.weight
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x)).transpose(1, 2)


def make(model, rank):
    """Returns network, samples, labels and loss."""
    if model == "mlp":
        return nets.make("mlp", 64, None, rank)
    if model == "resnet18":
        return nets.make("resnet18", 4, "64x64", rank)
    if model != "transformer":
        raise ValueError(f"no model {model}")
    torch.manual_seed(0)
    net = Transformer()
    torch.manual_seed(rank + 1)
    tokens = torch.randint(VOCABULARY, (2, TOKENS + 1))
    return net, tokens[:, :-1], tokens[:, 1:], F.cross_entropy


def sharded(net):
    """Shards each layer, and what is left as one more unit, over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in net.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)
