"""State dicts of modules, optimizers and generators pass to PyTorch and back, and both sides continue with equal
results."""
import ctypes
import unittest

import torch

import skips
import tern
from objects import Objects
from ops import Run
from optims import EVERY, Pair, two_of_three

OPTIMS = [
    ("sgd", dict(lr=0.1)),
    ("sgd", dict(lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.01)),
    ("sgd", dict(lr=0.1, momentum=0.9, nesterov=True, maximize=True)),
    ("adam", dict(lr=0.1, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1)),
    ("adam", dict(lr=0.1, amsgrad=True)),
    ("adamw", dict(lr=0.1, amsgrad=True, maximize=True)),
    ("rmsprop", dict(lr=0.01, momentum=0.9, centered=True)),
    ("rmsprop", dict(lr=0.01, alpha=0.9, weight_decay=0.1)),
    ("adagrad", dict(lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1)),
    ("lamb", dict(lr=0.01, betas=(0.8, 0.99), grad_averaging=False)),
]
GROUPS = {(1, 4): dict(lr=0.05, weight_decay=0.3), (0,): dict(lr=0.01)}

LATER = ("fused", "capturable", "decoupled_weight_decay")


def optim_state(pair):
    return Objects(pair.lib).take(pair.lib.check("tern_optim_state_dict", pair.optim, 0))


def optim_load(pair, state):
    objects = Objects(pair.lib)
    made = objects.make(state)
    try:
        pair.lib.check("tern_optim_state_dict_load", pair.optim, made)
    finally:
        objects.free(made)


class OptimTest(unittest.TestCase):
    def pair(self, kind, **options):
        pair = Pair(kind, **options)
        self.addCleanup(pair.close)
        return pair

    def train(self, pair, first, steps):
        for step in range(first, first + steps):
            pair.backward(two_of_three(step))
            pair.step()

    def cases(self):
        for kind, options in OPTIMS:
            for groups in ({}, GROUPS):
                yield kind, options, groups

    def same_groups(self, ours, theirs):
        """Versions differ in options for torch's own computation: 1.13's AdamW and Adagrad lack some of them."""
        self.assertEqual(len(ours), len(theirs))
        for mine, group in zip(ours, theirs):
            mine = {name: value for name, value in mine.items() if name != "step"}  # apex's, of LAMB
            extra = {name: mine[name] for name in ("differentiable", "fused", "capturable") if name in mine}
            self.assertEqual(mine, {**{name: group[name] for name in group if name not in LATER}, **extra})
            self.assertLessEqual(set(extra.values()), {None, False})

    def same(self, ours, theirs):
        self.same_groups(ours["param_groups"], theirs["param_groups"])
        there = [n for n, state in theirs["state"].items() if any(value is not None for value in state.values())]
        self.assertEqual(list(ours["state"]), sorted(there))
        for number, state in ours["state"].items():
            wanted = {name: value for name, value in theirs["state"][number].items() if value is not None}
            self.assertEqual(list(state), list(wanted))
            for name, value in state.items():
                wanted[name] = torch.as_tensor(wanted[name])  # RMSprop's step is an int in 1.13
                self.assertEqual(value.dtype, wanted[name].dtype if name != "step" else torch.float32)
                value = value.to(wanted[name].dtype)
                self.assertTrue(torch.allclose(value, wanted[name], rtol=1e-4, atol=1e-6), (number, name))

    def test_ours_has_torch_s_keys_and_values(self):
        for kind, options, groups in self.cases():
            with self.subTest(kind=kind, groups=groups, **options):
                pair = self.pair(kind, groups=groups, **options)
                self.assertEqual(len(optim_state(pair)["state"]), len(pair.torch_optim.state_dict()["state"]))
                self.train(pair, 0, 4)
                self.same(optim_state(pair), pair.torch_optim.state_dict())

    def test_torch_goes_on_with_ours(self):
        for kind, options, groups in self.cases():
            with self.subTest(kind=kind, groups=groups, **options):
                pair = self.pair(kind, groups=groups, **options)
                self.train(pair, 0, 4)
                fresh = pair.torch_optimizer(groups, dict(options, lr=77.0))
                fresh.load_state_dict(optim_state(pair))
                pair.torch_optim = fresh
                self.train(pair, 4, 4)
                self.assertLessEqual(pair.error(), 40)

    def test_ours_goes_on_with_torch_s(self):
        """The step as torch's tensor, as an int and as a float; options that only torch has; parameter numbers that
        do not start at 0."""
        for kind, options, groups in self.cases():
            for step_of in (lambda step: step, lambda step: int(step), lambda step: float(step)):
                with self.subTest(kind=kind, groups=groups, **options):
                    pair = self.pair(kind, groups=groups, **options)
                    self.train(pair, 0, 4)
                    saved = pair.torch_optim.state_dict()
                    saved["state"] = {
                        n + 10: {name: step_of(v) if name == "step" else v for name, v in state.items()}
                        for n, state in saved["state"].items()
                    }
                    for group in saved["param_groups"]:
                        group.update(params=[n + 10 for n in group["params"]], later_option="x")
                    again = self.pair(kind, groups={m: dict(lr=3) for m in groups}, seed=6, **dict(options, lr=77.0))
                    for ours, value in zip(again.ours, pair.theirs):
                        again.run.write(ours, value.detach().numpy())
                    again.theirs, again.torch_optim, again.rng = pair.theirs, pair.torch_optim, pair.rng
                    optim_load(again, saved)
                    self.train(again, 4, 4)
                    self.assertLessEqual(again.error(), 40)

    def test_the_step_may_be_the_group_s(self):
        """As apex's FusedLAMB and FusedAdam save it."""
        pair = self.pair("adam", lr=0.1)
        for step in range(4):
            pair.backward(EVERY)
            pair.step()
        saved = pair.torch_optim.state_dict()
        saved["param_groups"][0]["step"] = 4
        saved["state"] = {n: {k: v for k, v in state.items() if k != "step"} for n, state in saved["state"].items()}
        optim_load(pair, saved)
        self.train(pair, 4, 4)
        self.assertLessEqual(pair.error(), 40)

    def test_a_bit_for_bit_return(self):
        for kind, options, groups in self.cases():
            with self.subTest(kind=kind, groups=groups, **options):
                a, b = (self.pair(kind, groups=groups, **options) for _ in range(2))
                self.train(a, 0, 3)
                optim_load(b, optim_state(a))
                for ours, theirs in zip(b.ours, a.ours):
                    b.run.write(ours, a.run.value(theirs))
                b.rng, b.theirs = a.rng, a.theirs
                for step in range(3):
                    state = a.rng.bit_generator.state
                    for pair in (a, b):
                        pair.rng.bit_generator.state = state
                        pair.backward(EVERY)
                        pair.step()
                    for x, y in zip(a.ours, b.ours):
                        self.assertEqual(a.run.value(x).tobytes(), b.run.value(y).tobytes())

    def test_options_change_how_much_state_there_is(self):
        """torch's load uses the saved options; amsgrad and momentum need more memory than before, or less."""
        for kind, less, more in (("sgd", {}, dict(momentum=0.9)), ("adam", {}, dict(amsgrad=True))):
            for first, second in ((less, more), (more, less)):
                with self.subTest(kind=kind, first=first, second=second):
                    pair, other = self.pair(kind, lr=0.1, **first), self.pair(kind, lr=0.1, **second)
                    self.train(pair, 0, 2)
                    self.train(other, 0, 3)
                    for ours, value in zip(pair.ours, other.theirs):
                        pair.run.write(ours, value.detach().numpy())
                    optim_load(pair, optim_state(other))
                    pair.theirs, pair.torch_optim = other.theirs, other.torch_optim
                    self.train(pair, 3, 4)
                    self.assertLessEqual(pair.error(), 40)

    def test_what_does_not_fit(self):
        pair = self.pair("adam", lr=0.1, groups=GROUPS)
        self.train(pair, 0, 3)
        good = optim_state(pair)

        def refused(text, change):
            state = optim_state(pair)
            change(state)
            with self.assertRaises(tern.TernError) as caught:
                optim_load(pair, state)
            self.assertIn(text, str(caught.exception))
            self.same(optim_state(pair), good)

        def cut(state):
            state["state"][1]["exp_avg"] = state["state"][1]["exp_avg"].reshape(-1)[:1].clone()

        refused('expected a dict of "state"', lambda s: s.pop("state"))
        refused("different number of parameter groups: 2, expected 3", lambda s: s["param_groups"].pop())
        refused("param_groups[0] has 2 parameters, expected 3", lambda s: s["param_groups"][0]["params"].pop())
        refused('param_groups[0]["lr"] is a ', lambda s: s["param_groups"][0].update(lr="much"))
        refused('param_groups[0]["lr"] is -1', lambda s: s["param_groups"][0].update(lr=-1.0))
        refused('param_groups[1]["betas"] is a ', lambda s: s["param_groups"][1].update(betas=(1.0,)))
        refused("expected beta1 and beta2 from 0", lambda s: s["param_groups"][1].update(betas=(1.0, 2.0)))
        refused('param_groups[2]["params"][0] is a ', lambda s: s["param_groups"][2].update(params=["x"]))
        refused('param_groups[0]["amsgrad"] is a ', lambda s: s["param_groups"][0].update(amsgrad=1.5))
        refused("is of no parameter", lambda s: s["state"].update({99: {}}))
        refused("state[0] is a int", lambda s: s["state"].update({0: 3}))
        refused('state[0]["exp_avg"] is a float', lambda s: s["state"][0].update(exp_avg=1.0))
        refused('state[0]["step"] is a str', lambda s: s["state"][0].update(step="1"))
        refused("whole number", lambda s: s["state"][0].update(step=1.5))
        refused('has no state "sum"', lambda s: s["state"][0].update(sum=torch.zeros(3)))
        refused('has no "exp_avg"', lambda s: s["state"][0].pop("exp_avg"))
        refused("expected (", cut)


class RngTest(unittest.TestCase):
    def setUp(self):
        self.lib = tern.Library()
        self.objects = Objects(self.lib)
        self.rng = ctypes.c_void_p(self.lib.check("tern_rng_new", ctypes.c_uint64(11)))
        self.addCleanup(self.lib.tern_rng_free, self.rng)

    def draw(self, n):
        out = torch.empty(n)
        self.lib.tern_rng_normal(self.rng, tern.pointer(out), ctypes.c_size_t(n), ctypes.c_double(0), ctypes.c_double(1))
        return out

    def state(self):
        return self.objects.take(self.lib.check("tern_rng_state_dict", self.rng))

    def load(self, value):
        made = self.objects.make(value)
        try:
            self.lib.check("tern_rng_state_dict_load", self.rng, made)
        finally:
            self.objects.free(made)

    def test_both_ways_at_every_place(self):
        """After 0, some, 623, 624 and 625 words, and with a stored half of a pair of normals."""
        for drawn in (0, 1, 3, 15, 16, 100, 311, 312, 313, 623, 624, 625, 1000):
            with self.subTest(drawn=drawn):
                self.lib.tern_rng_seed(self.rng, ctypes.c_uint64(drawn))
                torch.manual_seed(drawn)
                theirs = torch.empty(drawn).normal_()
                self.draw(drawn)
                ours, saved = self.state(), torch.get_rng_state()
                self.assertEqual(ours.shape, saved.shape)
                torch.manual_seed(1)
                torch.set_rng_state(ours)
                self.assertEqual(torch.initial_seed(), drawn)
                wanted = torch.empty(5).normal_()
                self.assertTrue(torch.equal(self.draw(5), wanted))
                self.lib.tern_rng_seed(self.rng, ctypes.c_uint64(5))
                self.load(saved)
                self.assertTrue(torch.equal(self.draw(5), wanted))

    def test_what_is_no_state(self):
        state = self.state()
        for value, text in (
            (3, "expected a u8 tensor"),
            (state.to(torch.int32), "got a tensor of i32"),
            (state[:-8], "5048"),
            (torch.zeros_like(state), "not a generator's state"),
        ):
            with self.assertRaises(tern.TernError) as caught:
                self.load(value)
            self.assertIn(text, str(caught.exception))
        self.assertTrue(torch.equal(self.state(), state))


class Twins:
    """The same net in both libraries: Linear(5, 7), BatchNorm1d(7), Linear(7, 3)."""

    def __init__(self):
        self.run = Run("cpu", 1)
        self.lib = self.run.lib
        i64, check = ctypes.c_int64, self.lib.check
        self.rng = ctypes.c_void_p(check("tern_rng_new", ctypes.c_uint64(3)))
        self.net = self.run.layer("tern_sequential_new")
        for made in (
            check("tern_linear_new", i64(5), i64(7), None, self.rng),
            check("tern_batch_norm1d_new", i64(7), None),
            check("tern_linear_new", i64(7), i64(3), None, self.rng),
        ):
            check("tern_sequential_add", self.net, ctypes.c_void_p(made))
        self.torch = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
        self.objects = Objects(self.lib)

    def state(self):
        return self.objects.take(self.lib.check("tern_module_state_dict", self.net))

    def load(self, state, strict=True, prefix=None):
        """Returns the report, and the error or None."""
        opts = LoadOpts(ctypes.sizeof(LoadOpts), strict, prefix)
        report, made, error = ctypes.c_void_p(), self.objects.make(state), None
        try:
            self.lib.check("tern_module_state_dict_load", self.net, made, ctypes.byref(opts), ctypes.byref(report))
        except tern.TernError as caught:
            error = caught
        self.objects.free(made)
        return self.objects.take(report.value) if report else None, error

    def close(self):
        self.lib.tern_rng_free(self.rng)
        self.run.close()


class LoadOpts(ctypes.Structure):
    """tern_module_load_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("strict", ctypes.c_bool), ("prefix", ctypes.c_char_p)]


class ModuleTest(unittest.TestCase):
    def setUp(self):
        self.twins = Twins()
        self.addCleanup(self.twins.close)

    def same(self, ours, theirs):
        self.assertEqual(list(ours), list(theirs))
        for name in ours:
            self.assertEqual(ours[name].dtype, theirs[name].dtype)
            self.assertTrue(torch.equal(ours[name], theirs[name]), name)

    def test_both_ways(self):
        t = self.twins
        t.torch.load_state_dict(t.state(), strict=True)
        self.same(t.state(), t.torch.state_dict())
        t.torch.train()(torch.randn(8, 5))
        for tensor in t.torch.parameters():
            torch.nn.init.normal_(tensor)
        report, error = t.load(dict(t.torch.state_dict()))
        self.assertIsNone(error)
        self.assertEqual(report, dict(missing_keys=[], unexpected_keys=[], mismatched_keys=[]))
        self.same(t.state(), t.torch.state_dict())

    def test_the_prefix_of_a_wrapped_model(self):
        t = self.twins
        for tensor in t.torch.parameters():
            torch.nn.init.normal_(tensor)
        _, error = t.load({f"module.{name}": value for name, value in t.torch.state_dict().items()})
        self.assertIsNone(error)
        self.same(t.state(), t.torch.state_dict())

    def test_a_part_of_a_larger_model(self):
        """With a prefix, other names belong to other parts, and names with it are as strict as without."""
        t = self.twins
        for tensor in t.torch.parameters():
            torch.nn.init.normal_(tensor)
        whole = {f"net.{name}": value for name, value in t.torch.state_dict().items()}
        whole.update({"head.weight": torch.ones(2), "network": torch.ones(1)})
        report, error = t.load(whole, prefix=b"net.")
        self.assertIsNone(error)
        self.assertEqual(report, dict(missing_keys=[], unexpected_keys=[], mismatched_keys=[]))
        self.same(t.state(), t.torch.state_dict())
        del whole["net.0.bias"]
        whole["net.9.bias"] = torch.ones(1)
        report, error = t.load(whole, prefix=b"net.")
        self.assertEqual(report, dict(missing_keys=["0.bias"], unexpected_keys=["9.bias"], mismatched_keys=[]))
        self.assertIn('Missing key(s) in state_dict: "0.bias"', str(error))
        _, error = t.load(whole)
        self.assertIn('"head.weight"', str(error))
        _, error = t.load({f"module.{name}": value for name, value in t.torch.state_dict().items()}, prefix=b"")
        self.assertIn('Unexpected key(s) in state_dict: "module.0.weight"', str(error))

    def test_buffers_that_are_not_persistent(self):
        """They are in neither library's state dict, and come back with persistent=True."""
        t, lib = self.twins, self.twins.lib
        inner = ctypes.c_void_p(lib.check("tern_linear_new", ctypes.c_int64(1), ctypes.c_int64(2), None, t.rng))
        shape = (ctypes.c_int64 * 1)(4)
        for name in (b"table", b"kept"):
            lib.check("tern_buffer_add", inner, name, 0, 1, shape)
            t.torch.register_buffer(name.decode(), torch.zeros(4), persistent=name == b"kept")
        lib.check("tern_buffer_persistent_set", inner, b"table", False)
        lib.check("tern_module_add", t.net, b"inner", inner)
        names = [name for name in t.state() if name.startswith("inner.")]
        self.assertEqual(names, ["inner.weight", "inner.bias", "inner.kept"])
        self.assertNotIn("table", t.torch.state_dict())
        self.assertIsNone(lib.tern_state_find(t.net, b"inner.table"))
        for name, text in ((b"weight", 'linear has no buffer "weight"'), (b"nothing", 'linear has no buffer "nothing"')):
            with self.assertRaises(tern.TernError) as caught:
                lib.check("tern_buffer_persistent_set", inner, name, False)
            self.assertIn(text, str(caught.exception))
        lib.check("tern_buffer_persistent_set", inner, b"table", True)
        self.assertIn("inner.table", t.state())

    def test_dtypes_are_converted_as_copy_does(self):
        t = self.twins
        for dtype in (torch.float64, torch.float16, torch.bfloat16):
            state = {n: v.to(dtype) if v.is_floating_point() else v.to(torch.int32) for n, v in t.torch.state_dict().items()}
            _, error = t.load(state)
            self.assertIsNone(error)
            t.torch.load_state_dict(state)
            self.same(t.state(), t.torch.state_dict())

    def torch_says(self, state, strict):
        try:
            self.twins.torch.load_state_dict(state, strict=strict)
            return ""
        except RuntimeError as error:
            return str(error)

    def test_keys_as_torch_names_them(self):
        t = self.twins
        whole = dict(t.torch.state_dict())
        changes = {
            "missing": lambda s: [s.pop(n) for n in ("0.bias", "2.weight")],
            "unexpected": lambda s: s.update(extra=torch.zeros(2), more=torch.zeros(1)),
            "both": lambda s: s.update(extra=s.pop("0.bias")),
            "size": lambda s: s.update({"0.weight": torch.zeros(7, 4)}),
            "all": lambda s: s.update({"2.weight": torch.zeros(1, 1), "extra": s.pop("0.bias")}),
        }
        for name, change in changes.items():
            for strict in (True, False):
                with self.subTest(name=name, strict=strict):
                    state = dict(whole)
                    change(state)
                    before = t.state()
                    said = self.torch_says(state, strict)
                    report, error = t.load(state, strict)
                    self.assertEqual(bool(error), bool(said))
                    for quoted in (line.strip().rstrip(". ") for line in said.split("\n\t")[1:]):
                        self.assertIn(quoted.replace("torch.Size([", "(").replace("])", ")"), str(error))
                    self.assertEqual(set(report["missing_keys"]), set(whole) - set(state))
                    self.assertEqual(set(report["unexpected_keys"]), set(state) - set(whole))
                    wrong = [n for n in whole if n in state and state[n].shape != whole[n].shape]
                    self.assertEqual(report["mismatched_keys"], wrong)
                    if error:
                        self.same(t.state(), before)

    def test_what_is_no_tensor(self):
        t = self.twins
        for value, text in ((3, "0.bias is int in the checkpoint, expected a tensor"), (None, "expected a tensor")):
            _, error = t.load(dict(t.torch.state_dict(), **{"0.bias": value}))
            self.assertIn(text, str(error))
        _, error = t.load(dict(t.torch.state_dict(), **{"1.num_batches_tracked": torch.tensor(1.5)}))
        self.assertIn("1.num_batches_tracked is f32 in the checkpoint, expected i64", str(error))
        self.assertIn("expected a dict", str(t.load([])[1]))


if __name__ == "__main__":
    skips.main()
