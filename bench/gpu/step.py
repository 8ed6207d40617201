"""The training step of `tern bench step --device cuda` in PyTorch: the same networks, weights, data and optimizer (bench/peers/nets.py), on one GPU.

    python3 bench/gpu/step.py --model resnet50 --batch 256 --size 224 --dtype bf16 --way graph

Prints one JSON object with the keys of `tern bench step --json`, after as many steps. CUDA events time the steps, from the end of one to the end
of the next, and the host does not wait in between.
"""
import argparse
import json
import os
import statistics
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../peers"))
import nets  # noqa: E402

BEFORE_A_GRAPH = 3  # warm-up steps before the recording
MODES = {"compile": "default", "autotune": "max-autotune-no-cudagraphs"}  # of torch.compile
WAYS = ("eager", "graph", *MODES)


def arranged(thing):
    """Converts a tensor or a module to channels last."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}
    if isinstance(thing, torch.nn.Module):
        for dims in {parameter.dim() for parameter in thing.parameters()} & set(layout):
            thing.to(memory_format=layout[dims])
        return thing
    return thing.to(memory_format=layout[thing.dim()]) if thing.dim() in layout else thing


class Step:
    """`run` does one step and returns the loss. The way "graph" records it once and replays it; "compile" and "autotune" also compile
    the network and the loss with torch.compile."""

    def __init__(self, args):
        self.way = args.way
        net, x, y, self.loss_of = nets.make(args.model, args.batch, args.size, 0)
        self.net, self.x, self.y = arranged(net.cuda()), arranged(x.cuda()), y.cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, fused=True)
        self.half = {"bf16": torch.bfloat16, "f16": torch.float16}.get(args.dtype)
        self.loss = torch.compile(self.forward, mode=MODES[args.way]) if args.way in MODES else self.forward
        self.run, self.done = self.step, 0

    def forward(self):
        return self.loss_of(self.net(self.x), self.y)

    def step(self):
        self.done += 1
        self.optimizer.zero_grad(set_to_none=True)
        # A recorded graph must not use casts that were cached before it.
        with torch.autocast("cuda", self.half, enabled=self.half is not None, cache_enabled=self.way == "eager"):
            loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss

    def record(self):
        """Follows PyTorch's manual: runs steps on a side stream, then records one, which computes nothing. Returns the first step's loss."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            first = self.step().detach().clone()
            while self.done < BEFORE_A_GRAPH:
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            loss = self.step()
        self.done -= 1

        def replay():
            self.done += 1
            graph.replay()
            return loss

        self.run = replay
        return first

    def warm_up(self, steps):
        """Runs the warm-up steps. Returns the first step's loss."""
        first = (self.step() if self.way == "eager" else self.record()).item()
        torch.cuda.empty_cache()  # drops the memory that choosing algorithms and recording took
        torch.cuda.reset_peak_memory_stats()
        while self.done < steps:
            self.run()
        return first


def timed(step, steps):
    """Returns the milliseconds of each step, and the last loss."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        loss = step.run()
        event.record()
    torch.cuda.synchronize()
    return [one.elapsed_time(other) for one, other in zip(events, events[1:])], loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=nets.NETS, default="mlp")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", help="size of images or volumes, as tern's; default: the model's")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=BEFORE_A_GRAPH, help="warm-up steps")
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32", help="bf16 and f16 use an autocast region")
    parser.add_argument("--way", choices=WAYS, default="graph")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = False
    step = Step(args)
    first = step.warm_up(args.warm_up)
    times, last = timed(step, args.steps)
    print(json.dumps({"model": args.model, "batch": args.batch, "dtype": args.dtype, "steps": args.steps, "warm_up": args.warm_up, "way": args.way,
                      "median_ms": statistics.median(times), "min_ms": min(times), "samples_per_s": args.batch / statistics.median(times) * 1e3,
                      "tensor_mb": torch.cuda.max_memory_reserved() / 2**20, "loss_first": first, "loss_last": last}), flush=True)


if __name__ == "__main__":
    main()
