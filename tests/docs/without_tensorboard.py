"""Runs a program without the package tensorboard: SummaryWriter accepts all calls and writes nothing.

    python3 without_tensorboard.py PROGRAM
"""
import runpy
import sys
import types


class SummaryWriter:
    def __init__(self, log_dir):
        pass

    def add_scalars(self, tag, values, step):
        pass

    def close(self):
        pass


module = types.ModuleType("torch.utils.tensorboard")
module.SummaryWriter = SummaryWriter
sys.modules[module.__name__] = module
runpy.run_path(sys.argv[1], run_name="__main__")
