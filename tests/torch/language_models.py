"""GPT-2, Llama and BERT in PyTorch, with the formulas and names of Hugging Face's transformers, and tern's beside them."""
import ctypes
import math
from types import SimpleNamespace

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import tern
from nets import Net, library
from ops import BF16, F32, error_of
from test_bert import Bert, Opts as BertOpts
from test_rotary_embedding import attention_scaling, frequencies


class Gpt2Opts(ctypes.Structure):
    """tern_gpt2_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("vocab_size", ctypes.c_int64),
        ("n_positions", ctypes.c_int64),
        ("n_embd", ctypes.c_int64),
        ("n_layer", ctypes.c_int),
        ("n_head", ctypes.c_int64),
        ("n_inner", ctypes.c_int64),
        ("activation_function", ctypes.c_int),
        ("resid_pdrop", ctypes.c_double),
        ("embd_pdrop", ctypes.c_double),
        ("attn_pdrop", ctypes.c_double),
        ("layer_norm_epsilon", ctypes.c_double),
        ("initializer_range", ctypes.c_double),
        ("tie_word_embeddings", ctypes.c_bool),
    ]


class LlamaOpts(ctypes.Structure):
    """tern_llama_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("vocab_size", ctypes.c_int64),
        ("hidden_size", ctypes.c_int64),
        ("intermediate_size", ctypes.c_int64),
        ("num_hidden_layers", ctypes.c_int),
        ("num_attention_heads", ctypes.c_int64),
        ("num_key_value_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("max_position_embeddings", ctypes.c_int64),
        ("rms_norm_eps", ctypes.c_double),
        ("rope_theta", ctypes.c_double),
        ("rope_scaling", ctypes.c_int),
        ("rope_factor", ctypes.c_double),
        ("rope_low_freq_factor", ctypes.c_double),
        ("rope_high_freq_factor", ctypes.c_double),
        ("rope_original_positions", ctypes.c_int64),
        ("attention_bias", ctypes.c_bool),
        ("mlp_bias", ctypes.c_bool),
        ("tie_word_embeddings", ctypes.c_bool),
        ("attention_dropout", ctypes.c_double),
        ("initializer_range", ctypes.c_double),
        ("pad_token_id", ctypes.c_int64),
        ("rope_attention_factor", ctypes.c_double),
        ("rope_beta_fast", ctypes.c_double),
        ("rope_beta_slow", ctypes.c_double),
        ("rope_truncate", ctypes.c_bool),
        ("rope_short_factor", ctypes.POINTER(ctypes.c_double)),
        ("rope_long_factor", ctypes.POINTER(ctypes.c_double)),
    ]


class LossOpts(ctypes.Structure):
    """tern_language_model_loss_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("shifted", ctypes.c_bool),
        ("ignore_index", ctypes.c_int64),
        ("label_smoothing", ctypes.c_double),
        ("reduction", ctypes.c_int),
        ("attention_mask", ctypes.c_void_p),
    ]


class CallOpts(ctypes.Structure):
    """tern_language_model_call_opts."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("attention_mask", ctypes.c_void_p),
        ("position_ids", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("logits_to_keep", ctypes.c_int64),
    ]


class AdamOpts(ctypes.Structure):
    """tern_adam_opts."""

    _fields_ = [("size", ctypes.c_size_t), *((name, ctypes.c_double) for name in "lr beta1 beta2 eps weight_decay".split()),
                ("amsgrad", ctypes.c_bool), ("maximize", ctypes.c_bool)]


class SaveOpts(ctypes.Structure):
    """tern_pretrained_save_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("max_shard_bytes", ctypes.c_int64)]


KINDS = {"gpt2": Gpt2Opts, "llama": LlamaOpts, "bert": BertOpts}
NO_DROPOUT = {"gpt2": dict(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), "llama": {},
              "bert": dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0)}


def language_library():
    lib = library()
    lib.returns(CallOpts, "tern_language_model_call_defaults")
    for kind, opts in KINDS.items():
        lib.returns(opts, f"tern_{kind}_defaults")
    lib.returns(LossOpts, "tern_language_model_loss_defaults")
    lib.returns(AdamOpts, "tern_adamw_defaults")
    lib.returns(SaveOpts, "tern_pretrained_save_defaults")
    return lib


def make_language_model(lib, kind, rng, **fields):
    opts = getattr(lib, f"tern_{kind}_defaults")()
    for name, value in {**NO_DROPOUT[kind], **fields}.items():
        setattr(opts, name, (ctypes.c_double * len(value))(*value) if isinstance(value, list) else value)
    return lib.check(f"tern_{kind}_new", ctypes.byref(opts), rng)


def activation(name):
    return {"gelu_new": lambda x: F.gelu(x, approximate="tanh"), "gelu": F.gelu, "relu": F.relu, "silu": F.silu}[name]


def attention(q, k, v):
    """Causal attention of (N, heads, T, features); k and v may have fewer heads."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


# ---- GPT-2 ----


class Conv1D(nn.Module):
    """A linear whose weight is (in, out)."""

    def __init__(self, inside, out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inside, out).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return x @ self.weight + self.bias


class Gpt2Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        return self.c_proj(attention(q, k, v).transpose(1, 2).flatten(2))


class Gpt2Mlp(nn.Module):
    def __init__(self, width, inner, act):
        super().__init__()
        self.c_fc = Conv1D(width, inner)
        self.c_proj = Conv1D(inner, width)
        self.act = activation(act)

    def forward(self, x):
        return self.c_proj(self.act(self.c_fc(x)))


class Gpt2Block(nn.Module):
    def __init__(self, width, heads, inner, act, eps):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps)
        self.attn = Gpt2Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps)
        self.mlp = Gpt2Mlp(width, inner, act)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """transformers' GPT2LMHeadModel, without dropout."""

    ACTIVATIONS = "gelu_new gelu relu silu".split()

    def __init__(self, vocab_size, n_positions, n_embd, n_layer, n_head, n_inner=0, activation_function=0,
                 layer_norm_epsilon=1e-5, tie_word_embeddings=True):
        super().__init__()
        inner, act = n_inner or 4 * n_embd, self.ACTIVATIONS[activation_function]
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab_size, n_embd), "wpe": nn.Embedding(n_positions, n_embd),
            "h": nn.ModuleList(Gpt2Block(n_embd, n_head, inner, act, layer_norm_epsilon) for _ in range(n_layer)),
            "ln_f": nn.LayerNorm(n_embd, layer_norm_epsilon)})
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        if tie_word_embeddings:
            self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, tokens, positions=None):
        body = self.transformer
        x = body["wte"](tokens) + body["wpe"].weight[positions if positions is not None else slice(tokens.shape[1])]
        for block in body["h"]:
            x = block(x)
        return self.lm_head(body["ln_f"](x))


# ---- Llama ----


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class LlamaAttention(nn.Module):
    def __init__(self, width, heads, key_heads, features, bias, rope):
        super().__init__()
        self.features, self.rope = features, rope
        self.q_proj = nn.Linear(width, heads * features, bias)
        self.k_proj = nn.Linear(width, key_heads * features, bias)
        self.v_proj = nn.Linear(width, key_heads * features, bias)
        self.o_proj = nn.Linear(heads * features, width, bias)

    def rotate(self, x, positions):
        positions = torch.arange(x.shape[2])[None] if positions is None else positions
        length, scale = int(positions.max()) + 1, attention_scaling(**self.rope)
        angles = positions[:, None, :, None].double() * torch.tensor(frequencies(self.features, length, **self.rope))
        cos, sin = (scale * torch.cat([part, part], -1).to(x.dtype) for part in (angles.cos(), angles.sin()))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, x, positions):
        q, k, v = (part(x).unflatten(-1, (-1, self.features)).transpose(1, 2)
                   for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attention(self.rotate(q, positions), self.rotate(k, positions), v).transpose(1, 2).flatten(2))


class LlamaMlp(nn.Module):
    def __init__(self, width, inner, bias):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias)
        self.up_proj = nn.Linear(width, inner, bias)
        self.down_proj = nn.Linear(inner, width, bias)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, width, inner, eps, mlp_bias, attention):
        super().__init__()
        self.self_attn = attention
        self.mlp = LlamaMlp(width, inner, mlp_bias)
        self.input_layernorm = RmsNorm(width, eps)
        self.post_attention_layernorm = RmsNorm(width, eps)

    def forward(self, x, positions):
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """transformers' LlamaForCausalLM."""

    def __init__(self, vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
                 max_position_embeddings, num_key_value_heads=0, head_dim=0, rms_norm_eps=1e-6, rope_theta=1e4,
                 rope_scaling=0, rope_factor=1.0, rope_low_freq_factor=1.0, rope_high_freq_factor=4.0,
                 rope_original_positions=0, attention_bias=False, mlp_bias=False, tie_word_embeddings=False,
                 pad_token_id=-1, rope_attention_factor=0.0, rope_beta_fast=32.0, rope_beta_slow=1.0, rope_truncate=True,
                 rope_short_factor=None, rope_long_factor=None):
        super().__init__()
        features = head_dim or hidden_size // num_attention_heads
        rope = dict(base=rope_theta, scaling=rope_scaling, factor=rope_factor, low=rope_low_freq_factor, high=rope_high_freq_factor,
                    original=rope_original_positions or max_position_embeddings, attention=rope_attention_factor, fast=rope_beta_fast,
                    slow=rope_beta_slow, truncate=rope_truncate, short=rope_short_factor, long=rope_long_factor)
        layer = lambda: LlamaLayer(
            hidden_size, intermediate_size, rms_norm_eps, mlp_bias,
            LlamaAttention(hidden_size, num_attention_heads, num_key_value_heads or num_attention_heads, features,
                           attention_bias, rope))
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(vocab_size, hidden_size, padding_idx=None if pad_token_id < 0 else pad_token_id),
            "layers": nn.ModuleList(layer() for _ in range(num_hidden_layers)), "norm": RmsNorm(hidden_size, rms_norm_eps)})
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)
        if tie_word_embeddings:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def forward(self, tokens, positions=None):
        x = self.model["embed_tokens"](tokens)
        for layer in self.model["layers"]:
            x = layer(x, positions)
        return self.lm_head(self.model["norm"](x))


def bert(**fields):
    """transformers' BertModel, without dropout."""
    defaults = dict(type_vocab_size=2, pad_token_id=0, layer_norm_eps=1e-12, initializer_range=0.02, add_pooling_layer=True)
    return Bert(SimpleNamespace(**{**defaults, **NO_DROPOUT["bert"], **fields}))


TWINS = {"gpt2": Gpt2, "llama": Llama, "bert": bert}


def next_token_loss(logits, labels):
    """transformers' ForCausalLMLoss."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class LanguageNet(Net):
    """A language model of tern with AdamW; loss and backward without logits."""

    def __init__(self, lib, make, adam=None, dtype=None, **rest):
        super().__init__(lib, make, dtype=dtype, **rest)
        lib.tern_optim_free(self.optim)
        opts = lib.tern_adamw_defaults()
        for name, value in (adam or {}).items():
            setattr(opts, name, value)
        self.optim = ctypes.c_void_p(lib.check("tern_adamw_new", self.module, ctypes.byref(opts)))

    @classmethod
    def new(cls, lib, kind, fields, **rest):
        return cls(lib, lambda rng: make_language_model(lib, kind, rng, **fields), **rest)

    @classmethod
    def open(cls, lib, folder, **rest):
        return cls(lib, lambda rng: lib.check("tern_pretrained_open", folder.encode(), None), **rest)

    def load(self, state):
        for entry in self.entries():
            value = numpy.ascontiguousarray(state[entry.name.decode()].detach().cpu().numpy())
            self.lib.check("tern_tensor_write", ctypes.c_void_p(entry.tensor), tern.pointer(value), ctypes.c_size_t(value.nbytes))

    def logits(self, tokens):
        y = self.forward(tokens)
        self.raise_error()
        value = self.read(y)
        self.lib.check("tern_scope_end", self.scope)
        return value

    def call(self, tokens, cache=None, keep=0, **tensors):
        """Logits of tern_language_model_forward, of which `tensors` are options; without gradients. Those of bf16 become f32."""
        lib = self.lib
        opts = lib.tern_language_model_call_defaults()
        opts.cache, opts.logits_to_keep = cache, keep
        for name, value in tensors.items():
            setattr(opts, name, self.tensor(value))
        lib.tern_grad_enabled_set(self.scope, False)
        lib.tern_autocast_set(self.scope, self.region)
        y = lib.tern_language_model_forward(self.module, self.scope, self.tensor(tokens), ctypes.byref(opts))
        try:
            self.raise_error()
            return self.read(lib.tern_cast(self.scope, ctypes.c_void_p(y), F32) if lib.tern_tensor_dtype(ctypes.c_void_p(y)) == BF16 else y)
        finally:
            lib.tern_autocast_set(self.scope, 0)
            lib.tern_grad_enabled_set(self.scope, True)
            lib.tern_scope_end(self.scope, None)

    def backward(self, tokens, labels=None, attention_mask=None, **fields):
        lib = self.lib
        opts = lib.tern_language_model_loss_defaults()
        for name, value in fields.items():
            setattr(opts, name, value)
        opts.attention_mask = self.tensor(attention_mask) if attention_mask is not None else None
        lib.tern_autocast_set(self.scope, self.region)
        labels = self.tensor(labels) if labels is not None else None
        loss = ctypes.c_void_p(
            lib.tern_language_model_loss(self.module, self.scope, self.tensor(tokens), labels, ctypes.byref(opts)))
        lib.tern_autocast_set(self.scope, 0)
        lib.tern_backward(self.scope, loss)
        self.raise_error()
        value = lib.tern_item(loss)
        lib.check("tern_scope_end", self.scope)
        return value

    def step(self, tokens, labels=None):
        loss = self.backward(tokens, labels)
        self.update()
        return loss


def scatter(module, seed):
    """Gives every parameter values far from the initial ones, so that no gradient is lost in others."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            draw = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name.lower() or ".ln_" in name
            parameter.copy_(1 + 0.2 * draw if is_norm and name.endswith("weight") else
                            draw * (0.5 / math.sqrt(parameter.shape[0]) if parameter.ndim > 1 else 0.1))


def state_of(module):
    """The state dict with both names of a shared weight."""
    return {name: value for name, value in module.state_dict(keep_vars=False).items()}


def compare(test, lib, kind, fields, batch, length, seed=0, threads=2):
    """Logits, loss and gradients of one step, beside PyTorch in f64, and what f32 costs there."""
    torch.manual_seed(seed)
    module = TWINS[kind](**fields)
    scatter(module, seed)
    net = LanguageNet.new(lib, kind, fields, threads=threads)
    test.addCleanup(net.close)
    test.assertEqual([e.name.decode() for e in net.entries()], list(module.state_dict()))
    net.load(state_of(module))
    rng = numpy.random.default_rng(seed)
    tokens = rng.integers(0, fields["vocab_size"], (batch, length))
    labels = tokens.copy()
    labels[rng.random(labels.shape) < 0.2] = -100
    labels[0, 1] = tokens[0, 1]
    results = {}
    for dtype in (torch.float32, torch.float64):
        module.to(dtype).zero_grad()
        logits = module(torch.tensor(tokens))
        loss = next_token_loss(logits, torch.tensor(labels))
        loss.backward()
        grads = {name: p.grad.numpy().copy() for name, p in module.named_parameters()}
        results[dtype] = logits.detach().numpy(), loss.item(), grads
    (logits32, loss32, grads32), (logits, loss, grads) = results[torch.float32], results[torch.float64]
    test.assertLessEqual(error_of(net.logits(tokens), logits), max(2e-5, 8 * error_of(logits32, logits)))
    test.assertLessEqual(abs(net.backward(tokens, labels) - loss), max(1e-5, 8 * abs(loss32 - loss)))
    ours = net.grads()
    for name, grad in grads.items():
        limit = max(2e-5, 8 * error_of(grads32[name], grad))
        test.assertLessEqual(error_of(ours[name], grad), limit, name)
    return net, module.float()


def train(test, lib, kind, fields, batch, length, steps=20, seed=1, region=0):
    """Losses of AdamW steps in tern and in PyTorch, from the same weights on the same batches."""
    torch.manual_seed(seed)
    module = TWINS[kind](**fields)
    net = LanguageNet.new(lib, kind, fields, threads=2, adam=dict(lr=2e-3))
    net.region = region
    test.addCleanup(net.close)
    state = net.state()
    module.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    optim = torch.optim.AdamW(module.parameters(), 2e-3)
    rng = numpy.random.default_rng(seed)
    ours, theirs = [], []
    for _ in range(steps):
        tokens = rng.integers(0, fields["vocab_size"], (batch, length))
        ours.append(net.step(tokens))
        optim.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(region)):
            logits = module(torch.tensor(tokens))
        loss = next_token_loss(logits.float(), torch.tensor(tokens))
        loss.backward()
        optim.step()
        theirs.append(loss.item())
    return ours, theirs
