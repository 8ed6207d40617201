"""Debian 13's PyTorch is built without libuv, but its stores ask for it unless told otherwise. The environment's USE_LIBUV
tells init_process_group, and nothing tells torchrun."""
import torch.distributed as dist


class Without(dist.TCPStore):
    def __init__(self, *args, **options):
        super().__init__(*args, **{"use_libuv": False, **options})


def do_without():
    """Makes PyTorch's stores do without libuv if it has none."""
    try:
        dist.TCPStore("127.0.0.1", 0, 1, True)
    except RuntimeError:
        dist.TCPStore = Without
