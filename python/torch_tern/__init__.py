"""tern's collectives as the back end "tern" of torch.distributed.

    torch.distributed.init_process_group("tern")

From torch 2.5 on, `import torch` imports this package by itself; before, `import torch_tern` does it."""
import os

import torch
import torch.distributed

__all__ = ["register"]


def _release(version):
    return ".".join(version.split(".")[:2])


def _load():
    """The extension, which must have been built for the torch and the tern that are here: neither has a stable C++ or
    C interface between its releases."""
    again = "build it again with `pip install --no-build-isolation ./python` in a checkout of tern"
    try:
        from torch_tern import _C
    except ImportError as why:
        raise ImportError(f"torch_tern cannot be loaded beside torch {torch.__version__}: {why}; {again}") from why
    built, found = _C.built_with, (torch.__version__, _C.tern_version())
    for name, old, new in zip(("torch", "tern"), built, found):
        if _release(old) != _release(new):
            raise ImportError(f"torch_tern was built for {name} {old}, but here is {name} {new}: {again}")
    return _C


def register():
    """Makes the back end known to torch.distributed. Called at the import."""
    distributed = torch.distributed
    if not distributed.is_available() or hasattr(distributed.Backend, "TERN"):
        return
    # DDP asks a back end for its buckets' memory only if this is 0; they then lie where all ranks reach them.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    create = _load().create_backend
    try:
        distributed.Backend.register_backend("tern", create, devices=["cpu"])
    except TypeError:  # torch 1.13 knows no devices
        distributed.Backend.register_backend("tern", create)


register()
