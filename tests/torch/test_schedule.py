"""Schedules beside torch's, alone and several on one optimizer, with groups of different rates."""
import ctypes
import unittest
import warnings

import torch.optim.lr_scheduler as theirs

from optims import EVERY, Pair

STEPS, EPOCHS = 0, 1
RATES = 0.1, 0.7  # of the two groups


def number(value):
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


def milestones(*values):
    return len(values), (ctypes.c_int64 * len(values))(*values)


class Schedules:
    """Each of `made` is (what tern_..._schedule_new is called, its arguments, torch's scheduler)."""

    def __init__(self, unit, *made):
        self.pair = Pair("sgd", groups={(0, 2): dict(lr=RATES[1])}, lr=RATES[0])
        self.lib = self.pair.lib
        self.ours, self.torch = [], []
        for name, args, scheduler in made:
            self.lib.returns(ctypes.c_void_p, f"tern_{name}_schedule_new")
            self.ours.append(ctypes.c_void_p(self.lib.check(f"tern_{name}_schedule_new", self.pair.optim, unit, *args)))
            self.torch.append(scheduler(self.pair.torch_optim))

    def rates(self):
        return [self.pair.lr(group) for group in range(2)], [group["lr"] for group in self.pair.torch_optim.param_groups]

    def advance(self, call):
        self.pair.torch_optim.step()
        for ours, scheduler in zip(self.ours, self.torch):
            getattr(self.lib, call)(ours)
            scheduler.step()

    def close(self):
        for ours in self.ours:
            self.lib.tern_schedule_free(ours)
        self.pair.close()


MADE = {
    "step": ("step", (number(7), number(0.3)), lambda o: theirs.StepLR(o, 7, 0.3)),
    "multi_step": ("multi_step", (*milestones(3, 4, 11), number(0.5)), lambda o: theirs.MultiStepLR(o, [3, 4, 11], 0.5)),
    "exponential": ("exponential", (number(0.9),), lambda o: theirs.ExponentialLR(o, 0.9)),
    "warm_up": ("linear", (number(0.25), number(1.0), number(9)), lambda o: theirs.LinearLR(o, 0.25, 1, 9)),
    "decay": ("linear", (number(1.0), number(0.125), number(6)), lambda o: theirs.LinearLR(o, 1, 0.125, 6)),
    "cosine": ("cosine", (number(0), number(30)), lambda o: theirs.CosineAnnealingLR(o, 30)),
}


class Schedule(unittest.TestCase):
    def beside(self, unit, *names):
        schedules = Schedules(unit, *(MADE[name] for name in names))
        calls = "tern_schedule_step", "tern_schedule_epoch"
        try:
            for t in range(31):
                got, want = schedules.rates()
                for g, w in zip(got, want):
                    self.assertAlmostEqual(g, w, delta=1e-14, msg=f"{names} t = {t}")
                for ours in schedules.ours:
                    getattr(schedules.lib, calls[1 - unit])(ours)  # the other unit's call changes nothing
                schedules.advance(calls[unit])
        finally:
            schedules.close()

    def test_alone(self):
        for name in MADE:
            for unit in (STEPS, EPOCHS):
                self.beside(unit, name)

    def test_several_multiply(self):
        self.beside(STEPS, "warm_up", "multi_step")
        self.beside(EPOCHS, "warm_up", "step", "exponential")
        self.beside(STEPS, "warm_up", "cosine")

    def test_warm_up_and_cosine(self):
        """torch has the two only one after the other: LinearLR's last factor is CosineAnnealingLR's first."""
        def sequential(optimizer):
            warm_up = theirs.LinearLR(optimizer, 1 / 5, 1, 4)
            return theirs.SequentialLR(optimizer, [warm_up, theirs.CosineAnnealingLR(optimizer, 20)], [5])
        warnings.simplefilter("ignore")  # SequentialLR calls what torch itself calls deprecated
        schedules = Schedules(STEPS, ("cosine", (number(5), number(25)), sequential))
        for t in range(25):
            got, want = schedules.rates()
            for g, w in zip(got, want):
                self.assertAlmostEqual(g, w, delta=1e-14, msg=f"t = {t}")
            schedules.advance("tern_schedule_step")
        self.assertEqual(schedules.rates()[0], [0, 0])
        schedules.close()

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


if __name__ == "__main__":
    unittest.main()
