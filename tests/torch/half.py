"""Ops in the 16-bit types compared with torch in f64."""
import numpy
import torch

from ops import Run, error_of


def torch_sums_in_f32():
    """True if PyTorch sums products of bf16 matrices in f32, as tern does: its oneDNN must support the CPU's bf16.
    Otherwise it sums in bf16, which no other code can match to within a step."""
    run = Run()
    run.lib.tern_autocast_set(run.scope, 5)  # keeps oneDNN, torch's too, from using AMX if a virtual machine only claims to have it
    run.close()
    row = torch.full((64, 512), 2.0**-9, dtype=torch.bfloat16)
    row[:, 0] = 1
    return bool((row @ torch.ones(512, 64, dtype=torch.bfloat16) > 1.9).all())


TYPES = [(5, torch.bfloat16), (6, torch.float16)]  # tern's number


def compare_half(what, op, oracle, arrays, device="cpu", f32=(), roundings=1):
    """op(run, *tensors) on the arrays (f32) cast to each 16-bit type, but for those whose number is in `f32`, and backward
    with a random dy. Value and gradients are torch's in f64 from the same rounded inputs, but for `roundings` of the
    result, each by half a step of the type at the largest value. Torch's gradients are not rounded: of two sums that
    are, in another order, those next to a tie are a whole step apart."""
    for dtype, kind in TYPES:
        step = torch.finfo(kind).eps
        round_ = lambda a: a.to(kind).to(torch.float64)
        run = Run(device)
        try:
            inputs = [run.parameter(a) for a in arrays]
            y = op(run, *(p if i in f32 else run.op("tern_cast", p, dtype) for i, p in enumerate(inputs)))
            assert run.lib.tern_tensor_dtype(y) == dtype, f"{what}: a result of another type"
            exact = [torch.tensor(a.astype("d")) for a in arrays]
            theirs = [(t if i in f32 else round_(t)).requires_grad_() for i, t in enumerate(exact)]
            want = oracle(*theirs)
            y = run.op("tern_cast", y, 0)
            error = error_of(run.value(y), want.detach().numpy())
            assert error <= 0.51 * step * roundings, f"{what} {kind} on {device}: value off by {error / step:.2f} steps"
            dy = round_(torch.randn(want.shape, generator=torch.Generator().manual_seed(1)))
            run.backward(y, dy.numpy().astype("f"))
            want.backward(dy)
            for i, (p, t) in enumerate(zip(inputs, theirs)):
                error = error_of(run.grad(p), t.grad.numpy())
                assert error <= 0.51 * step * roundings, f"{what} {kind} on {device}: gradient {i} off by {error / step:.2f} steps"
        finally:
            run.close()
