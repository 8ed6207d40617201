"""A reader of GGUF, and folders of Hugging Face with random weights and tokenizers, made without PyTorch.

    folder_write(folder, "llama", rng, num_key_value_heads=2)      # returns the weights by their names
    keys, tensors = read("model.gguf")                             # tensors: name -> (type, array of f32)
"""
import json
import os
import struct

import numpy

# ---- reading: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md ----

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
TYPES = {0: "f32", 1: "f16", 8: "q8_0"}
BLOCK = numpy.dtype([("scale", "<f2"), ("values", "i1", 32)])


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def unpack(self, form):
        value, = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self):
        length = self.unpack("Q")
        self.at += length
        return self.data[self.at - length:self.at].decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.unpack("I"), self.unpack("Q")
            return [self.value(kind) for _ in range(count)]
        return self.unpack({U32: "I", I32: "i", F32: "f", BOOL: "?"}[kind])


def read(path):
    """Returns the keys, and the tensors by name: (type, array of f32 in the order of PyTorch's dimensions)."""
    with open(path, "rb") as file:
        data = file.read()
    reader = Reader(data)
    assert data[:4] == b"GGUF"
    reader.at = 4
    assert reader.unpack("I") == 3
    tensor_count, key_count = reader.unpack("Q"), reader.unpack("Q")
    keys, tensors = {}, {}
    for _ in range(key_count):
        name = reader.string()
        assert name not in keys
        keys[name] = reader.value(reader.unpack("I"))
    infos = []
    for _ in range(tensor_count):
        name, ndim = reader.string(), reader.unpack("I")
        shape = [reader.unpack("Q") for _ in range(ndim)][::-1]
        infos.append((name, shape, TYPES[reader.unpack("I")], reader.unpack("Q")))
    end = start = -reader.at % 32 + reader.at
    for name, shape, kind, offset in infos:
        count = int(numpy.prod(shape))
        assert offset % 32 == 0 and start + offset == -end % 32 + end, name  # they follow each other
        assert name not in tensors
        if kind == "q8_0":
            assert shape[-1] % 32 == 0, name
            blocks = numpy.frombuffer(data, BLOCK, count // 32, start + offset)
            values = blocks["scale"].astype("f4")[:, None] * blocks["values"].astype("f4")
            end = start + offset + count // 32 * 34
        else:
            values = numpy.frombuffer(data, "<f4" if kind == "f32" else "<f2", count, start + offset)
            end = start + offset + values.nbytes
        tensors[name] = kind, values.astype("f4").reshape(shape)
    assert len(data) == -end % 32 + end
    return keys, tensors


def q8_0(values):
    """What becomes of an array that is rounded to q8_0 and read again: the formula of ggml, in f32."""
    blocks = values.reshape(-1, 32)
    scale = abs(blocks).max(1, keepdims=True) / numpy.float32(127)
    with numpy.errstate(over="ignore"):
        inverse = 1 / numpy.where(scale > 0, scale, 1)
    inverse = numpy.where(numpy.isfinite(inverse), inverse, 0)  # such a scale is 0 in f16
    scaled = (blocks * inverse).astype("f8")  # where adding a half is exact
    rounded = numpy.sign(scaled) * numpy.floor(abs(scaled) + 0.5)
    return (scale.astype("f2").astype("f4") * rounded.astype("f4")).reshape(values.shape)


# ---- folders ----

FIELDS = {
    "gpt2": dict(vocab_size=310, n_positions=16, n_embd=64, n_layer=2, n_head=4, layer_norm_epsilon=1e-4),
    "llama": dict(vocab_size=420, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  max_position_embeddings=32, rms_norm_eps=1e-5, rope_theta=500.0),
}


def shapes_of(kind, c):
    """The weights of a model, by their names in transformers."""
    if kind == "gpt2":
        width, inner = c["n_embd"], c.get("n_inner") or 4 * c["n_embd"]
        shapes = {"transformer.wte.weight": (c["vocab_size"], width), "transformer.wpe.weight": (c["n_positions"], width)}
        for i in range(c["n_layer"]):
            block = f"transformer.h.{i}."
            for name, linear in (("attn.c_attn", (width, 3 * width)), ("attn.c_proj", (width, width)), ("mlp.c_fc", (width, inner)), ("mlp.c_proj", (inner, width))):
                shapes.update({f"{block}{name}.weight": linear, f"{block}{name}.bias": linear[1:]})
            for name in ("ln_1", "ln_2"):
                shapes.update({f"{block}{name}.weight": (width,), f"{block}{name}.bias": (width,)})
        shapes.update({"transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)})
        if not c.get("tie_word_embeddings", True):
            shapes["lm_head.weight"] = c["vocab_size"], width
        return shapes
    width, inner = c["hidden_size"], c["intermediate_size"]
    dim = c.get("head_dim") or width // c["num_attention_heads"]
    queries, keys = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], width)}
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, rows, columns, bias in (("self_attn.q_proj", queries, width, "attention_bias"), ("self_attn.k_proj", keys, width, "attention_bias"),
                                          ("self_attn.v_proj", keys, width, "attention_bias"), ("self_attn.o_proj", width, queries, "attention_bias"),
                                          ("mlp.gate_proj", inner, width, "mlp_bias"), ("mlp.up_proj", inner, width, "mlp_bias"), ("mlp.down_proj", width, inner, "mlp_bias")):
            shapes[f"{layer}{name}.weight"] = rows, columns
            if c.get(bias):
                shapes[f"{layer}{name}.bias"] = (rows,)
        shapes.update({f"{layer}input_layernorm.weight": (width,), f"{layer}post_attention_layernorm.weight": (width,)})
    shapes["model.norm.weight"] = (width,)
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = c["vocab_size"], width
    return shapes


def safetensors_write(path, weights):
    header, at = {}, 0
    for name, values in weights.items():
        header[name] = dict(dtype="F32", shape=values.shape, data_offsets=[at, at + values.nbytes])
        at += values.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in weights.values():
            file.write(values.astype("<f4").tobytes())


def json_write(value, *path):
    with open(os.path.join(*path), "w") as file:
        json.dump(value, file)


def folder_write(folder, kind, rng, weights=None, **more):
    """Writes config.json, model.safetensors and tokenizer.json; returns the weights. `weights` replace drawn ones."""
    config = dict(FIELDS[kind], model_type=kind, **more)
    os.makedirs(folder, exist_ok=True)
    drawn = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes_of(kind, config).items()}
    drawn.update(weights or {})
    safetensors_write(os.path.join(folder, "model.safetensors"), drawn)
    json_write(config, folder, "config.json")
    json_write(byte_level(rng, 40) if kind == "gpt2" else sentence_piece(rng, 60), folder, "tokenizer.json")
    return drawn


# ---- tokenizers ----

def byte_chars():
    """The characters by which GPT-2 writes bytes."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) for b in shown] + [chr(256 + i) for i in range(len(hidden))]


def added(number, content, special=True):
    return dict(id=number, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=special)


def byte_level(rng, merges, split=None):
    """A tokenizer.json of GPT-2's kind; with `split`, its expression comes before ByteLevel, as in Llama 3."""
    tokens, pairs = byte_chars(), []
    while len(pairs) < merges:
        left, right = (tokens[rng.integers(len(tokens))] for _ in range(2))
        if left + right not in tokens:
            tokens.append(left + right)
            pairs.append([left, right] if len(pairs) % 2 else f"{left} {right}")
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in pairs]
    last = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=split is None)
    first = dict(type="Split", pattern=dict(Regex=split), behavior="Isolated", invert=False)
    return dict(added_tokens=[added(len(tokens), "<|endoftext|>"), added(len(tokens) + 1, "word", False)], normalizer=None, post_processor=None,
                pre_tokenizer=last if split is None else dict(type="Sequence", pretokenizers=[first, last]), decoder=dict(type="ByteLevel"),
                model=dict(type="BPE", vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))


def sentence_piece(rng, pieces):
    """A tokenizer.json as transformers makes it of a SentencePiece model of Llama 2's kind."""
    chars = list("▁etaoinshrdlu") + ["é", "海"]
    made = []
    while len(made) < pieces:
        known = chars + made
        piece = known[rng.integers(len(known))] + known[rng.integers(len(known))]
        if piece not in known and len(piece) < 9:
            made.append(piece)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + made + chars
    number = {token: i for i, token in enumerate(tokens)}
    merges = []
    for piece in made:  # in the order of the scores, then of the halves
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in number and piece[i:] in number]
        merges += sorted(halves, key=lambda pair: (number[pair[0]], number[pair[1]]))
    bos = dict(SpecialToken=dict(id="<s>", type_id=0)), dict(Sequence=dict(id="A", type_id=0))
    return dict(added_tokens=[added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(len(tokens), "▁new▁word", False)],
                normalizer=dict(type="Sequence", normalizers=[dict(type="Prepend", prepend="▁"), dict(type="Replace", pattern=dict(String=" "), content="▁")]),
                pre_tokenizer=None, decoder=None,
                post_processor=dict(type="TemplateProcessing", single=list(bos), pair=list(bos), special_tokens={"<s>": dict(id="<s>", ids=[1], tokens=["<s>"])}),
                model=dict(type="BPE", unk_token="<unk>", fuse_unk=True, byte_fallback=True, vocab=number, merges=[" ".join(pair) for pair in merges]))
