"""llm.c (https://github.com/karpathy/llm.c) as a peer of run.sh: GPT-2 in one process of two threads.

LLMC is the folder with its train_gpt2.c, which is compiled with $CC (default: cc) and the flags of its Makefile. As a script,
`llmc.py CHECKPOINT TOKENS LAYERS WIDTH HEADS POSITIONS BATCH VOCABULARY` writes weights and tokens of nets.py as llm.c reads them.
"""
import json
import os
import sys

from peers import DEBIAN_PYTHON, HERE, Peer, output

FLAGS = ["-Ofast", "-march=native", "-fopenmp", "-DOMP", "-w"]


class Llmc(Peer):
    name = "llm.c"

    def __init__(self, folder, source):
        self.folder, self.program = folder, os.path.join(folder, "llmc_step")
        output([os.environ.get("CC", "cc"), *FLAGS, "-I", source, os.path.join(HERE, "llmc_step.c"), "-o", self.program, "-lm"])

    def language(self, layers, width, heads, positions, batch, vocabulary, steps):
        files = [os.path.join(self.folder, name) for name in ("checkpoint", "tokens")]
        output([DEBIAN_PYTHON, os.path.join(HERE, "llmc.py"), *files, *map(str, (layers, width, heads, positions, batch, vocabulary))])
        said = output([self.program, *files, *map(str, (batch, positions, steps))], env={**os.environ, "OMP_NUM_THREADS": "2"})
        return json.loads(said.splitlines()[-1])


def find_llmc(folder):
    """Returns llm.c if LLMC says where it is; ends the bench if not."""
    source = os.environ.get("LLMC", "")
    if not os.path.exists(os.path.join(source, "train_gpt2.c")):
        sys.exit(f"run.sh: llmc: expected LLMC to be the folder of llm.c's train_gpt2.c, got {source!r}")
    return [Llmc(folder, source)]


def checkpoint(net, vocabulary, positions, width, layers, heads):
    """Returns the bytes of a checkpoint: a header, then the parameters by name, those of all blocks together. llm.c's linears are (out, in), and its
    vocabulary is a multiple of 128."""
    import torch
    padded = -vocabulary % 128
    header = torch.zeros(256, dtype=torch.int32)
    header[:8] = torch.tensor([20240326, 3, positions, vocabulary, layers, heads, width, vocabulary + padded])
    parts = [header, torch.nn.functional.pad(net.wte.weight, (0, 0, 0, padded)), net.wpe.weight]
    for name in ("ln_1", "c_attn", "attn_c_proj", "ln_2", "c_fc", "mlp_c_proj"):
        modules = [getattr(block, name) for block in net.h]
        parts += [module.weight.t() for module in modules] + [module.bias for module in modules]
    parts += [net.ln_f.weight, net.ln_f.bias]
    return b"".join(part.detach().contiguous().numpy().tobytes() for part in parts)


def main():
    import nets
    layers, width, heads, positions, batch, vocabulary = map(int, sys.argv[3:])
    net, tokens, _, _ = nets.make("gpt2", batch, str(positions), 0, layers=layers, width=width, heads=heads, vocabulary=vocabulary)
    with open(sys.argv[1], "wb") as file:
        file.write(checkpoint(net, vocabulary, positions, width, layers, heads))
    with open(sys.argv[2], "wb") as file:
        file.write(tokens.int().numpy().tobytes())


if __name__ == "__main__":
    main()
