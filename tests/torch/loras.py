"""Low-rank adapters in PyTorch, with PEFT's formulas, beside tern's."""
import ctypes
import json
import math

from torch import nn

from language_models import LanguageNet, language_library, make_language_model


class LoraOpts(ctypes.Structure):
    """tern_lora_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("r", ctypes.c_int64),
        ("lora_alpha", ctypes.c_double),
        ("use_rslora", ctypes.c_bool),
        ("lora_dropout", ctypes.c_double),
        ("target_modules", ctypes.POINTER(ctypes.c_char_p)),
        ("target_count", ctypes.c_int),
    ]


def read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def lora_library():
    lib = language_library()
    lib.returns(LoraOpts, "tern_lora_defaults")
    return lib


def add_lora(lib, module, rng, targets=None, **fields):
    opts = lib.tern_lora_defaults()
    for name, value in fields.items():
        setattr(opts, name, value)
    if targets:
        opts.target_modules = (ctypes.c_char_p * len(targets))(*(target.encode() for target in targets))
        opts.target_count = len(targets)
    lib.check("tern_lora_add", module, ctypes.byref(opts), rng)


class LoraNet(LanguageNet):
    """A language model with adapters."""

    @classmethod
    def new(cls, lib, kind, fields, targets=None, lora=None, **rest):
        def make(rng):
            module = ctypes.c_void_p(make_language_model(lib, kind, rng, **fields))
            add_lora(lib, module, rng, targets, **(lora or {}))
            return module.value

        return cls(lib, make, **rest)

    @classmethod
    def open(cls, lib, folder, adapter=None, trains=True, targets=None, lora=None, **rest):
        """A folder with the adapters of another folder, or with new ones."""
        def make(rng):
            module = ctypes.c_void_p(lib.check("tern_pretrained_open", folder.encode(), None))
            if adapter:
                lib.check("tern_lora_open", module, adapter.encode(), trains)
            else:
                add_lora(lib, module, rng, targets, **(lora or {}))
            return module.value

        return cls(lib, make, **rest)

    def adapters(self):
        return {e.name.decode(): self.read(e.tensor) for e in self.entries() if b".lora_" in e.name}


class Lora(nn.Module):
    """A linear and its adapter, y = W x + b + scale B A x, with the linear's own names."""

    def __init__(self, base, r, scale):
        super().__init__()
        self.base = [base]  # hidden, so that its parameters are registered once
        self.weight = base.weight
        self.bias = base.bias
        inside, out = base.weight.shape if not isinstance(base, nn.Linear) else reversed(base.weight.shape)
        self.lora_A, self.lora_B = nn.Linear(inside, r, bias=False), nn.Linear(r, out, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scale = scale

    def forward(self, x):
        return self.base[0](x) + self.scale * self.lora_B(self.lora_A(x))


def adapt(module, targets, r=8, lora_alpha=8, use_rslora=False):
    """Puts adapters beside the linears whose names end so, and freezes the rest."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for name, child in list(module.named_modules()):
        if any(f".{name}".endswith(f".{target}") for target in targets):
            parent, _, last = name.rpartition(".")
            module.get_submodule(parent)._modules[last] = Lora(child, r, lora_alpha / (math.sqrt(r) if use_rslora else r))
    return module
