"""tern's collectives as the back end "tern" of torch.distributed.

    torch.distributed.init_process_group("tern")

From torch 2.5 on, `import torch` imports this package by itself; before, `import torch_tern` does it."""
import atexit
import os

import torch
import torch.distributed

__all__ = ["register"]

AGAIN = "build it again with `pip install --no-build-isolation ./python` in a checkout of tern"


def _check_release(name, built, found):
    """Neither torch nor tern has a stable C++ or C interface between its releases."""
    if built.split(".")[:2] != found.split(".")[:2]:
        raise ImportError(f"torch_tern was built for {name} {built}, but here is {name} {found}: {AGAIN}")


def _load():
    """The extension, which must have been built for the torch and the tern that are here."""
    from torch_tern import built_with

    _check_release("torch", built_with.TORCH, torch.__version__)
    try:
        from torch_tern import _C
    except ImportError as why:
        is_lost = "libtern.so" in str(why) and "cannot open" in str(why)
        lost = f"tern is neither in LD_LIBRARY_PATH nor in {built_with.LIBRARY}, where it was when torch_tern was built"
        raise ImportError(
            f"torch_tern, built for torch {built_with.TORCH} and tern {built_with.TERN}, cannot be loaded: {why}; "
            + (lost if is_lost else AGAIN)
        ) from why
    _check_release("tern", built_with.TERN, _C.tern_version())
    return _C


def register():
    """Makes the back end known to torch.distributed. Called at the import."""
    distributed = torch.distributed
    if not distributed.is_available() or hasattr(distributed.Backend, "TERN"):
        return
    # DDP asks a back end for its buckets' memory only if this is 0; they then lie where all ranks reach them.
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    extension = _load()
    create = extension.create_backend
    atexit.register(extension.end_threads)
    try:
        distributed.Backend.register_backend("tern", create, devices=["cpu"])
    except TypeError:  # torch 1.13 knows no devices
        distributed.Backend.register_backend("tern", create)


register()
