"""One rank of test_sync_batch_norm.py: this rank's rows of each case's batch, compared with torch's result for the
whole batch.

    tern run -n N /usr/bin/python3 sync_batch_norm_rank.py CASES.npz
"""
import ctypes
import json
import sys

import numpy

from ops import BF16, F32, Run, blocked
from tern import pointer

OPTS = {"f": (2e-6, 2e-5), "d": (1e-12, 1e-11), "bf16": (4e-3, 4e-3)}  # for values; for gradients: relative to the largest one
SUM = 0


class BatchNormOpts(ctypes.Structure):
    """tern_batch_norm_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("eps", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("affine", ctypes.c_bool),
        ("track_running_stats", ctypes.c_bool),
        ("cumulative", ctypes.c_bool),
    ]


class Case:
    """One batch, split into the ranks' rows."""

    def __init__(self, number, facts, arrays, group, lib):
        self.number, self.group, self.facts = number, group, facts
        rank = lib.tern_group_rank(group)
        self.start, self.stop = sum(facts["rows"][:rank]), sum(facts["rows"][: rank + 1])
        self.arrays = {name.split("/")[1]: a for name, a in arrays.items() if name.startswith(f"{number}/")}

    def whole(self, name):
        return self.arrays.get(name)

    def own(self, name):
        return self.arrays[name][self.start:self.stop] if name in self.arrays else None

    def check(self, what, got, want, tolerance):
        """The error is relative to the largest value of the whole batch."""
        largest = max(1e-30, float(numpy.abs(self.arrays[what.split()[0]]).max()))
        worst = float(numpy.abs(got.astype("d") - want).max()) if want.size else 0
        assert got.shape == want.shape, f"{self.facts}: {what}: {got.shape} {want.shape}"
        assert worst <= tolerance * largest, f"{self.facts}: {what} is off by {worst / largest:.2e}"

    def layer(self, run):
        """A synchronised batch norm with the case's weight and bias."""
        opts = BatchNormOpts(ctypes.sizeof(BatchNormOpts), 1e-5, 0.1, self.whole("weight") is not None, self.whole("running_mean") is not None,
                             self.facts["cumulative"])
        channels = ctypes.c_int64(self.whole("x").shape[1])
        layer = run.layer(f"tern_batch_norm{self.facts['kind']}_new", channels, ctypes.byref(opts))
        run.lib.check("tern_sync_batch_norm_convert", layer, self.group)
        for name in ("weight", "bias"):
            if self.whole(name) is not None:
                run.write(self.member(run, layer, name), self.whole(name).astype("f"))
        return layer

    def member(self, run, layer, name):
        return ctypes.c_void_p(run.lib.tern_state_find(layer, name.encode()))

    def input(self, run, parameter):
        """The input in the case's dtype and layout."""
        x = run.op("tern_cast", parameter, BF16) if self.facts["dtype"] == "bf16" else parameter
        return blocked(run, x) if self.facts["blocked"] else x

    def compare(self):
        run = Run(self.facts["device"], 1, self.group)  # a second thread would only spin
        value, gradient = OPTS[self.facts["dtype"]]
        dtype = "d" if self.facts["dtype"] == "d" else "f"
        layer = self.layer(run)
        x, dy = run.parameter(self.own("x").astype(dtype)), self.own("dy").astype(dtype)
        residual = None if self.own("residual") is None else run.parameter(self.own("residual").astype(dtype))
        for repeat in (1, 2):
            extra = residual and self.input(run, residual)
            y = run.op_of("tern_batch_norm_act_forward", layer, self.input(run, x), extra, self.facts["relu"])
            y = run.op("tern_cast", y, F32) if self.facts["dtype"] == "bf16" else y
            self.check("y", run.value(y), self.own("y"), value)
            run.backward(y, dy)
            self.check("dx", run.grad(x), repeat * self.own("dx"), repeat * gradient)
            if residual:
                self.check("dresidual", run.grad(residual), repeat * self.own("dresidual"), repeat * gradient)
            for name in ("weight", "bias"):
                if self.whole(name) is not None:
                    self.check_sum(run, f"d{name}", run.grad(self.member(run, layer, name)), repeat, repeat * gradient)
            run.end()
        for name in ("running_mean", "running_var"):
            if self.whole(name) is not None:
                self.check(name, run.value(self.member(run, layer, name)), self.whole(name), value)
        run.close()

    def check_sum(self, run, what, grad, repeat, tolerance):
        """A parameter's gradient is this rank's share; the sum over all ranks is the batch's."""
        run.lib.check("tern_all_reduce", self.group, pointer(grad), ctypes.c_size_t(grad.size), F32, SUM)
        self.check(what, grad, repeat * self.whole(what), tolerance)


def main():
    with numpy.load(sys.argv[1]) as file:
        arrays = dict(file)
    run = Run()
    group = ctypes.c_void_p(run.lib.check("tern_group_open", None))
    for number, facts in enumerate(json.loads(str(arrays["facts"]))):
        Case(number, facts, arrays, group, run.lib).compare()
    run.lib.tern_group_close(group)
    run.close()
    print("equal", flush=True)


if __name__ == "__main__":
    main()
