"""Schedules compared with torch's, alone and several on one optimizer, with groups of different rates."""
import copy
import ctypes
import itertools
import math
import random
import unittest
import warnings

import torch.optim.lr_scheduler as theirs

import skips
import tern
from objects import Objects
from optims import EVERY, Pair

STEPS, EPOCHS = 0, 1
STEPS_MADE, TOLERANCE = 300, 1e-13  # torch multiplies, so its errors accumulate
RATES = 0.1, 0.7  # of the two groups


def number(value):
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


def milestones(*values):
    return len(values), (ctypes.c_int64 * len(values))(*values)


LambdaFn = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_int, ctypes.c_void_p)


class OneCycleOpts(ctypes.Structure):
    """tern_one_cycle_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("pct_start", ctypes.c_double),
        ("linear", ctypes.c_bool),
        ("three_phase", ctypes.c_bool),
        ("cycle_momentum", ctypes.c_bool),
        ("base_momentum", ctypes.c_double),
        ("max_momentum", ctypes.c_double),
        ("div_factor", ctypes.c_double),
        ("final_div_factor", ctypes.c_double),
    ]


class PlateauOpts(ctypes.Structure):
    """tern_plateau_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("maximize", ctypes.c_bool),
        ("absolute", ctypes.c_bool),
        ("factor", ctypes.c_double),
        ("patience", ctypes.c_int64),
        ("threshold", ctypes.c_double),
        ("cooldown", ctypes.c_int64),
        ("min", ctypes.c_double),
        ("eps", ctypes.c_double),
    ]


OURS = {"max_lrs", "num_reductions"}
OPTS = {"one_cycle": OneCycleOpts, "plateau": PlateauOpts}


class Schedules:
    """Each of `made` is (what is called tern_..._schedule_new, its arguments, torch's scheduler)."""

    def __init__(self, unit, *made, kind="sgd", **options):
        options = {**(dict(momentum=0.9) if kind == "sgd" else {}), **options}
        self.pair = Pair(kind, groups={(0, 2): dict(lr=RATES[1])}, lr=RATES[0], **options)
        self.lib, self.unit, self.kept = self.pair.lib, unit, []
        self.ours = [self.make(name, args) for name, args, _ in made]
        self.torch = [scheduler(self.pair.torch_optim) for _, _, scheduler in made]

    def make(self, name, args):
        """`args` of a sequence are (name, args) of the parts and the milestones; of options, a dict of what is not default."""
        new = f"tern_{name}_schedule_new"
        if name == "sequential":
            parts, turns = args
            parts = [self.make(*part) for part in parts]
            args = len(parts), (ctypes.c_void_p * len(parts))(*parts), (ctypes.c_int64 * len(turns))(*turns)
        elif name in OPTS:
            self.lib.returns(OPTS[name], f"tern_{name}_defaults")
            opts = getattr(self.lib, f"tern_{name}_defaults")()
            for field, value in args[-1].items():
                setattr(opts, field, value)
            args = *args[:-1], ctypes.byref(opts)
        self.kept.append(args)
        unit = [] if name == "plateau" else [self.unit]
        return ctypes.c_void_p(self.lib.check(new, self.pair.optim, *unit, *args))

    def rates(self):
        return [self.pair.lr(group) for group in range(2)], [group["lr"] for group in self.pair.torch_optim.param_groups]

    def torch_step(self):
        """An optimizer's step without parameters: torch requires one before each scheduler's step."""
        self.pair.torch_optim.zero_grad(set_to_none=True)
        self.pair.torch_optim.step()

    def advance(self, call):
        self.torch_step()
        for ours, scheduler in zip(self.ours, self.torch):
            getattr(self.lib, call)(ours)
            scheduler.step()

    def metric(self, value):
        self.torch_step()
        for ours, scheduler in zip(self.ours, self.torch):
            self.lib.check("tern_schedule_metric", ours, ctypes.c_double(value))
            scheduler.step(value)

    def state(self, which=0):
        return Objects(self.lib).take(self.lib.check("tern_schedule_state_dict", self.ours[which]))

    def load(self, state, which=0):
        objects = Objects(self.lib)
        made = objects.make(state)
        try:
            self.lib.check("tern_schedule_state_dict_load", self.ours[which], made)
        finally:
            objects.free(made)

    def close(self):
        for ours in self.ours:
            self.lib.tern_schedule_free(ours)
        self.pair.close()


def wave(t, group):
    return 1 / (1 + t) + 0.1 * group


@LambdaFn
def our_wave(t, group, ctx):
    return wave(t, group)


def sequential(parts, turns):
    def make(optimizer):
        return theirs.SequentialLR(optimizer, [MADE[part][2](optimizer) for part in parts], turns)

    return "sequential", ([MADE[part][:2] for part in parts], turns), make


MADE = {
    "step": ("step", (number(7), number(0.3)), lambda o: theirs.StepLR(o, 7, 0.3)),
    "multi_step": ("multi_step", (*milestones(3, 4, 11), number(0.5)), lambda o: theirs.MultiStepLR(o, [3, 4, 11], 0.5)),
    "exponential": ("exponential", (number(0.99),), lambda o: theirs.ExponentialLR(o, 0.99)),
    "warm_up": ("linear", (number(0.25), number(1.0), number(9)), lambda o: theirs.LinearLR(o, 0.25, 1, 9)),
    "decay": ("linear", (number(1.0), number(0.125), number(6)), lambda o: theirs.LinearLR(o, 1, 0.125, 6)),
    "constant": ("constant", (number(0.25), number(11)), lambda o: theirs.ConstantLR(o, 0.25, 11)),
    "polynomial": ("polynomial", (number(150), number(0.9)), lambda o: theirs.PolynomialLR(o, 150, 0.9)),
    "square": ("polynomial", (number(400), number(2.0)), lambda o: theirs.PolynomialLR(o, 400, 2)),
    "annealing": ("cosine_annealing", (number(30), number(0.0)), lambda o: theirs.CosineAnnealingLR(o, 30)),
    "annealing_to": ("cosine_annealing", (number(90), number(0.01)), lambda o: theirs.CosineAnnealingLR(o, 90, 0.01)),
    "restarts": ("cosine_restarts", (number(7), number(1), number(0.0)), lambda o: theirs.CosineAnnealingWarmRestarts(o, 7)),
    "restarts_to": (
        "cosine_restarts",
        (number(5), number(3), number(0.02)),
        lambda o: theirs.CosineAnnealingWarmRestarts(o, 5, 3, 0.02),
    ),
    "lambda": ("lambda", (our_wave, None), lambda o: theirs.LambdaLR(o, [lambda t: wave(t, 0), lambda t: wave(t, 1)])),
}
SEQUENCES = {
    "warm_up, annealing_to": sequential(["warm_up", "annealing_to"], [9]),
    "constant, exponential": sequential(["constant", "exponential"], [40]),
    "warm_up, restarts_to, step": sequential(["warm_up", "restarts_to", "step"], [5, 70]),
    "decay, lambda, multi_step, polynomial": sequential(["decay", "lambda", "multi_step", "polynomial"], [1, 2, 60]),
}
CYCLES = [
    dict(),
    dict(linear=True),
    dict(three_phase=True),
    dict(three_phase=True, linear=True, pct_start=0.4, div_factor=5.0, final_div_factor=100.0),
    dict(pct_start=0.0),
    dict(pct_start=0.9, base_momentum=0.5, max_momentum=0.6),
    dict(cycle_momentum=False, pct_start=0.2),
]
PLATEAUS = [
    dict(patience=2),
    dict(factor=0.5, patience=0, threshold=0.05),
    dict(patience=1, cooldown=3, min=0.02),
    dict(factor=0.7, patience=1, absolute=True, threshold=0.1, maximize=True),
    dict(factor=0.3, patience=3, maximize=True, threshold=0.02, cooldown=1),
    dict(patience=0, eps=0.5),
]


def one_cycle(total, options):
    given = {{"linear": "anneal_strategy"}.get(k, k): ("linear" if k == "linear" else v) for k, v in options.items()}
    return "one_cycle", (number(total), options), lambda o: theirs.OneCycleLR(o, [*RATES], total, **given)


def plateau(options):
    given = {k: v for k, v in options.items() if k not in ("maximize", "absolute", "min")}
    given.update(mode="max" if options.get("maximize") else "min", min_lr=options.get("min", 0))
    given.update(threshold_mode="abs" if options.get("absolute") else "rel")
    return "plateau", (options,), lambda o: theirs.ReduceLROnPlateau(o, **given)


def made_of(name):
    return MADE[name] if name in MADE else SEQUENCES[name]


class Schedule(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")  # SequentialLR makes a call that torch itself has deprecated

    def expect_rates(self, schedules, what):
        got, want = schedules.rates()
        for g, w in zip(got, want):
            self.assertAlmostEqual(g, w, delta=TOLERANCE, msg=what)

    def beside(self, unit, *names):
        schedules = Schedules(unit, *(made_of(name) for name in names))
        calls = "tern_schedule_step", "tern_schedule_epoch"
        try:
            for t in range(STEPS_MADE):
                self.expect_rates(schedules, f"{names} t = {t}")
                for ours in schedules.ours:
                    getattr(schedules.lib, calls[1 - unit])(ours)  # the other unit's call changes nothing
                schedules.advance(calls[unit])
        finally:
            schedules.close()

    def test_alone(self):
        for name in [*MADE, *SEQUENCES]:
            for unit in (STEPS, EPOCHS):
                self.beside(unit, name)

    def test_several_multiply(self):
        self.beside(STEPS, "warm_up", "multi_step")
        self.beside(EPOCHS, "warm_up", "step", "exponential")
        self.beside(STEPS, "warm_up", "annealing")
        self.beside(STEPS, "constant", "polynomial")

    def test_warm_up_and_cosine(self):
        """torch has them only in sequence: LinearLR's last factor is CosineAnnealingLR's first."""
        def both(optimizer):
            warm_up = theirs.LinearLR(optimizer, 1 / 5, 1, 4)
            return theirs.SequentialLR(optimizer, [warm_up, theirs.CosineAnnealingLR(optimizer, 20)], [5])

        schedules = Schedules(STEPS, ("cosine", (number(5), number(25)), both))
        for t in range(25):
            self.expect_rates(schedules, f"t = {t}")
            schedules.advance("tern_schedule_step")
        self.assertEqual(schedules.rates()[0], [0, 0])
        schedules.close()

    def test_warm_up_and_cosine_to_a_lowest_rate(self):
        """LinearLR, then CosineAnnealingLR with eta_min; after the end the rate stays there."""
        def both(optimizer):
            warm_up = theirs.LinearLR(optimizer, 1 / 5, 1, 4)
            return theirs.SequentialLR(optimizer, [warm_up, theirs.CosineAnnealingLR(optimizer, 20, 0.02)], [5])

        schedules = Schedules(STEPS, ("cosine", (number(5), number(25)), both))
        lib, schedule = schedules.pair.lib, schedules.ours[0]
        lib.check("tern_cosine_schedule_min_set", schedule, ctypes.c_double(0.02))
        for t in range(25):
            self.expect_rates(schedules, f"t = {t}")
            schedules.advance("tern_schedule_step")
        for value in (-0.1, float("nan")):
            with self.assertRaises(tern.TernError):
                lib.check("tern_cosine_schedule_min_set", schedule, ctypes.c_double(value))
        for _ in range(3):
            self.assertEqual(schedules.rates()[0], [0.02, 0.02])
            lib.tern_schedule_step(schedule)
        schedules.close()
        other = Schedules(STEPS, MADE["annealing"])
        with self.assertRaises(tern.TernError) as caught:
            other.pair.lib.check("tern_cosine_schedule_min_set", other.ours[0], ctypes.c_double(0.02))
        self.assertIn("expected a schedule of tern_cosine_schedule_new", str(caught.exception))
        other.close()

    def test_training(self):
        schedules = Schedules(STEPS, MADE["warm_up"], MADE["step"])
        pair = schedules.pair
        for t in range(20):
            pair.backward(EVERY)
            pair.step()
            self.assertLessEqual(pair.error(), 4 * (t + 1))
            for ours, scheduler in zip(schedules.ours, schedules.torch):
                schedules.lib.tern_schedule_step(ours)
                scheduler.step()
        schedules.close()

    def test_one_cycle(self):
        """Compares the rates, and the momentum by its effect on the parameters."""
        kinds = ("sgd", {}), ("adam", {}), ("adamw", {}), ("rmsprop", dict(momentum=0.5))
        for (kind, options), cycle in itertools.product(kinds, CYCLES):
            schedules = Schedules(STEPS, one_cycle(200, cycle), kind=kind, **options)
            pair = schedules.pair
            for t in range(200):
                self.expect_rates(schedules, f"{kind} {cycle} t = {t}")
                if t < 20 or t % 20 == 0:
                    pair.backward(EVERY, scale=0.1)
                    pair.step()
                if t < 20:
                    self.assertLessEqual(pair.error(), 8 * (t + 1), f"{kind} {cycle} t = {t}")
                schedules.advance("tern_schedule_step")
            schedules.close()

    def test_one_cycle_ends(self):
        schedules = Schedules(STEPS, one_cycle(10, {}))
        for t in range(9):
            schedules.advance("tern_schedule_step")
        last = schedules.rates()[0]
        for t in range(5):
            schedules.lib.tern_schedule_step(schedules.ours[0])
            self.assertEqual(schedules.rates()[0], last)
        schedules.close()

    def test_plateau(self):
        for options in PLATEAUS:
            schedules = Schedules(EPOCHS, plateau(options))
            draw = random.Random(3)
            seen = set()
            for t in range(STEPS_MADE):
                self.expect_rates(schedules, f"{options} t = {t}")
                seen.add(schedules.rates()[0][0])
                metric = (1 if options.get("maximize") else -1) * math.log(2 + t) + draw.random() + 10
                schedules.metric(math.nan if t % 50 == 49 else metric)
                for call in ("tern_schedule_step", "tern_schedule_epoch"):
                    getattr(schedules.lib, call)(schedules.ours[0])  # it counts metrics
            self.assertEqual(len(seen) > 1, options != PLATEAUS[-1], options)
            schedules.close()

    def test_plateau_and_warm_up(self):
        schedules = Schedules(EPOCHS, MADE["warm_up"], plateau(dict(patience=0, factor=0.5)))
        for t, metric in enumerate((3, 3, 2, 2, 2, 1)):
            warm_up = 0.25 + 0.75 * t / 9
            self.assertAlmostEqual(schedules.rates()[0][0], RATES[0] * warm_up * 0.5 ** [0, 0, 1, 1, 2, 3][t], delta=TOLERANCE)
            schedules.lib.check("tern_schedule_metric", schedules.ours[1], ctypes.c_double(metric))
            schedules.lib.tern_schedule_epoch(schedules.ours[0])
        schedules.close()

    # ---- state dicts ----

    def every(self):
        """(name, what Schedules takes, how to advance)."""
        def step(schedules, t):
            schedules.advance("tern_schedule_step")

        def metric(schedules, t):
            schedules.metric(math.sin(t))

        for name in [*MADE, *SEQUENCES]:
            yield name, made_of(name), step
        yield "one_cycle", one_cycle(100, {}), step
        yield "plateau", plateau(dict(patience=2, factor=0.9, cooldown=1)), metric

    def test_a_resumed_run_has_the_same_bits(self):
        for name, made, advance in self.every():
            whole, resumed = Schedules(STEPS, made), Schedules(STEPS, made)
            for group in range(2):  # the state overrides them
                resumed.lib.tern_optim_lr_set(resumed.pair.optim, group, ctypes.c_double(9))
            for t in range(33):
                advance(whole, t)
            resumed.load(whole.state())
            for t in range(33, 66):
                self.assertEqual(resumed.rates()[0], whole.rates()[0], f"{name} t = {t}")
                self.assertEqual(resumed.state(), whole.state(), f"{name} t = {t}")
                advance(whole, t)
                advance(resumed, t)
            whole.close()
            resumed.close()

    def test_ours_in_torch(self):
        """The values that torch's scheduler with the same arguments needs to resume, besides its optimizer's rates."""
        for name, made, advance in self.every():
            schedules = Schedules(STEPS, made)
            for t in range(33):
                advance(schedules, t)
            groups = [{k: v for k, v in group.items() if k != "params"} for group in schedules.pair.torch_optim.param_groups]
            ours, states = schedules.state(), schedules.torch[0].state_dict()
            self.assertLessEqual(set(ours) - OURS, set(states) | ({"base_lrs", "_step_count"} & set(ours)), name)
            if name in SEQUENCES:
                times = [[part["last_epoch"] for part in state["_schedulers"]] for state in (ours, states)]
                self.assertEqual(*times, name)
            fresh = Schedules(STEPS, made)
            for group, saved in zip(fresh.pair.torch_optim.param_groups, groups):
                group.update(copy.deepcopy(saved))
            fresh.torch[0].load_state_dict(copy.deepcopy(ours))
            fresh.load(ours)
            for t in range(33, 66):
                self.expect_rates(fresh, f"{name} t = {t}")
                advance(fresh, t)
            schedules.close()
            fresh.close()

    def test_torch_in_ours(self):
        for name, made, advance in self.every():
            schedules, fresh = Schedules(STEPS, made), Schedules(STEPS, made)
            for t in range(33):
                advance(schedules, t)
            fresh.load(plain(schedules.torch[0].state_dict()))
            if name == "plateau":  # as in its optimizer's state
                for group in range(2):
                    fresh.lib.tern_optim_lr_set(fresh.pair.optim, group, ctypes.c_double(schedules.rates()[1][group]))
            for t in range(33, 66):
                want = schedules.rates()[1]
                for g, w in zip(fresh.rates()[0], want):
                    self.assertAlmostEqual(g, w, delta=TOLERANCE, msg=f"{name} t = {t}")
                advance(schedules, t)
                advance(fresh, t)
            schedules.close()
            fresh.close()

    def reduced(self, options=dict(patience=0, factor=0.3), metrics=(2, 2, 2)):
        """A plateau that has lowered both rates, and PyTorch's beside it."""
        schedules = Schedules(EPOCHS, plateau(options))
        for metric in metrics:
            schedules.metric(metric)
        self.expect_rates(schedules, "before")
        return schedules

    def go_on(self, schedules, what, metrics=(2, 1, 1, 1, 1, 1)):
        for metric in metrics:
            self.expect_rates(schedules, what)
            schedules.metric(metric)
        self.expect_rates(schedules, what)
        schedules.close()

    def test_a_plateaus_state_alone_changes_no_rate(self):
        """As in PyTorch, whose scheduler does not know the rates; the counters are those of the state."""
        for options in PLATEAUS[:-1]:
            for before, loaded in ((), (2, 2)), ((2, 2, 2, 2, 2), ()), ((2, 2, 2), (3, 3, 3, 3, 3, 3, 3, 3)), ((2,) * 9, (1, 1)):
                schedules, other = self.reduced(options, before), self.reduced(options, loaded)
                rates = schedules.rates()[0]
                state = other.torch[0].state_dict()
                schedules.torch[0].load_state_dict(copy.deepcopy(state))
                schedules.load(plain(state))
                self.assertEqual(schedules.rates()[0], rates)
                self.go_on(schedules, f"{options} {before} {loaded}")
                other.close()

    def test_a_plateaus_state_and_its_optimizers(self):
        """PyTorch's states of both, in either order, into a plateau that has reduced its rates more or less often."""
        for metrics in (), (2,), (2, 2), (2, 2, 2, 2, 2):
            for is_first in False, True:
                schedules, other = self.reduced(), self.reduced(metrics=metrics)
                optimizer = other.pair.torch_optim.state_dict()
                scheduler = other.torch[0].state_dict()
                schedules.pair.torch_optim.load_state_dict(copy.deepcopy(optimizer))
                schedules.torch[0].load_state_dict(copy.deepcopy(scheduler))
                loads = [lambda: schedules.load(plain(scheduler)), lambda: self.load_optimizer(schedules, optimizer)]
                for load in loads if is_first else reversed(loads):
                    load()
                self.go_on(schedules, f"{metrics} {is_first}")
                other.close()

    def load_optimizer(self, schedules, state):
        objects = Objects(schedules.lib)
        made = objects.make(state)
        schedules.lib.check("tern_optim_state_dict_load", schedules.pair.optim, made)
        objects.free(made)

    def test_lr_scale(self):
        lib = tern.Library()
        def scale(*args):
            return lib.tern_lr_scale(*(ctypes.c_double(x) for x in args))

        for k in (1, 2, 3, 8, 64, 0.5):
            self.assertEqual(scale(0.1, k, 1), 0.1 * k)
            self.assertAlmostEqual(scale(0.1, k, 0.5), 0.1 * math.sqrt(k), delta=1e-16 * k)
            self.assertAlmostEqual(scale(scale(0.1, k, 2 / 3), k, -2 / 3), 0.1, delta=1e-16)
        self.assertAlmostEqual(scale(0.1, 8, 2 / 3), 0.4, delta=1e-15)
        self.assertEqual(scale(0.3, 8, 0), 0.3)
        for k in (0, -1, math.nan):
            self.assertTrue(math.isnan(scale(0.1, k, 1)))

    def test_scaled_rate_and_warm_up(self):
        """As in the header: 8 ranks, 4 times the rate, starting with the unscaled one."""
        base, k, p, total = 0.1, 8, 2 / 3, 5
        schedules = Schedules(STEPS)
        lib, pair = schedules.lib, schedules.pair
        rate, start = (lib.tern_lr_scale(*(ctypes.c_double(x) for x in xs)) for xs in ((base, k, p), (1, k, -p)))
        lib.tern_optim_lr_set(pair.optim, 0, ctypes.c_double(rate))
        warm_up = schedules.make("linear", (number(start), number(1.0), number(total)))
        for t in range(10):
            self.assertAlmostEqual(pair.lr(), base + (4 * base - base) * min(t, total) / total, delta=1e-15)
            lib.tern_schedule_step(warm_up)
        lib.tern_schedule_free(warm_up)
        schedules.close()


def plain(state):
    """The state without other objects, such as a Counter and functions."""
    if isinstance(state, (list, tuple)):
        return [plain(item) for item in state]
    if not isinstance(state, dict):
        return state if isinstance(state, (bool, int, float, str, type(None))) else None
    return {key: plain(value) for key, value in state.items() if isinstance(key, str)}


if __name__ == "__main__":
    skips.main()
