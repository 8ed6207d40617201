"""Files both ways with the newest PyTorch, whose torch.load is restricted to data unless it is told otherwise."""
import os
import tempfile

import peers

peers.enter()

import torch  # noqa: E402

import tern  # noqa: E402
from files import Files, same  # noqa: E402
from objects import DTYPES  # noqa: E402

FILES = Files()
FOLDER = tempfile.TemporaryDirectory()
PATH = os.path.join(FOLDER.name, "größe.pt")


def state():
    tied = torch.randn(4, 3)
    return {"epoch": 3, "lr": 0.1, "big": -2**40, "größe": ("é", None, True), "raw": b"a\0\xff", 7: [{}, []],
            "model": {f"layer.{i}": (torch.randn(3, 2) * 9).to(dtype) for i, dtype in enumerate(DTYPES)},
            "tied": [tied, tied, tied[1:3]], "small": [torch.tensor(1.5), torch.zeros(0, 3)]}


def test_torch_load_takes_ours():
    for protocol in range(3):
        torch.manual_seed(protocol)
        expected = state()
        FILES.save(PATH, expected)
        got = torch.load(PATH)
        same(expected, got)
        storages = {t.untyped_storage().data_ptr() for t in got["tied"]}
        assert len(storages) == 1, "what was tied is not any more"


def test_ours_takes_theirs():
    expected = state()
    expected["strides"] = [torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)[1:], torch.ones(3).expand(2, 3)]
    for zipped in (True, False):
        for protocol in (2, 5):
            torch.save(expected, PATH, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
            same(expected, FILES.load(PATH))


def test_a_model_and_its_optimizer():
    def make():
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2))
        return net, torch.optim.AdamW(net.parameters(), lr=0.5)

    net, optim = make()
    sum(p.sum() for p in net.parameters()).backward()
    optim.step()
    expected = {"model": net.state_dict(), "optimizer": optim.state_dict()}
    torch.save(expected, PATH)
    FILES.save(PATH, FILES.load(PATH))
    got = torch.load(PATH)
    same(expected, got)
    net, optim = make()
    net.load_state_dict(got["model"], strict=True)
    optim.load_state_dict(got["optimizer"])
    same(expected, {"model": net.state_dict(), "optimizer": optim.state_dict()})


def test_a_dtype_that_tern_has_not():
    torch.save(torch.zeros(2, dtype=torch.uint16), PATH)
    try:
        FILES.load(PATH)
    except tern.TernError as error:
        assert error.code == -9 and "dtype tern does not have" in str(error), error
    else:
        raise AssertionError("it was loaded")


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name)
