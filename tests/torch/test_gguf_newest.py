"""tern's files of GGUF read by llama.cpp's own package: every key, every tensor, and the bytes of q8_0."""
import importlib.util
import os
import unittest

import peers

peers.enter()

import skips  # noqa: E402

if not importlib.util.find_spec("gguf"):
    skips.end("no gguf: run scripts/peers.sh")
if not skips.has_part("regex"):
    skips.end("this build has no regex")

import ctypes  # noqa: E402

import gguf  # noqa: E402
import numpy  # noqa: E402

import gguf_file  # noqa: E402
import tern  # noqa: E402
from folder import InFolder  # noqa: E402


class Opts(ctypes.Structure):
    """tern_gguf_opts."""

    _fields_ = [("size", ctypes.c_size_t), ("type", ctypes.c_int), ("name", ctypes.c_char_p), ("adapter", ctypes.c_char_p)]


LIB = tern.Library()
LIB.returns(Opts, "tern_gguf_defaults")
FILE_TYPES = [gguf.LlamaFileType.ALL_F32, gguf.LlamaFileType.MOSTLY_F16, gguf.LlamaFileType.MOSTLY_Q8_0]
QUANTIZED = [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0]


class GgufNewestTest(InFolder):
    def saved(self, kind, dtype, **more):
        """Returns the weights of a folder, and the reader of its file."""
        rng = numpy.random.default_rng(4)
        folder, path = os.path.join(self.folder, "in"), os.path.join(self.folder, "out.gguf")
        weights = gguf_file.folder_write(folder, kind, rng, **more)
        opts = LIB.tern_gguf_defaults()
        opts.type, opts.name = dtype, "a tern é".encode()
        LIB.check("tern_gguf_save", folder.encode(), path.encode(), ctypes.byref(opts))
        return weights, gguf.GGUFReader(path), path

    def test_keys(self):
        for kind in ("gpt2", "llama"):
            for dtype, file_type in enumerate(FILE_TYPES):
                _, reader, path = self.saved(kind, dtype)
                ours = gguf_file.read(path)[0]
                theirs = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
                self.assertEqual(theirs, ours)
                self.assertEqual((theirs["general.name"], theirs["general.file_type"]), ("a tern é", file_type))
                architecture = theirs["general.architecture"]
                self.assertIn(architecture, gguf.MODEL_ARCH_NAMES.values())
                known = {value for group in vars(gguf.Keys).values() if isinstance(group, type) for value in vars(group).values() if isinstance(value, str)}
                self.assertEqual(set(theirs) - {name.replace("{arch}", architecture) for name in known}, set())

    def test_tensors(self):
        """Names are those of the package's own table, values what it makes of the folder's."""
        for kind, arch, more in (("gpt2", gguf.MODEL_ARCH.GPT2, dict(tie_word_embeddings=False)), ("gpt2", gguf.MODEL_ARCH.GPT2, dict(n_embd=36, n_head=3)),
                                 ("llama", gguf.MODEL_ARCH.LLAMA, dict(attention_bias=True, mlp_bias=True)), ("llama", gguf.MODEL_ARCH.LLAMA, dict(num_key_value_heads=1, head_dim=10))):
            names = gguf.get_tensor_name_map(arch, 2)
            config = dict(gguf_file.FIELDS[kind], **more)
            for dtype, quantized in enumerate(QUANTIZED):
                weights, reader, _ = self.saved(kind, dtype, **more)
                tensors = {tensor.name: tensor for tensor in reader.tensors}
                self.assertEqual(sorted(tensors), sorted(names.get_name(name, (".weight", ".bias")) for name in weights))
                for name, values in weights.items():
                    tensor = tensors[names.get_name(name, (".weight", ".bias"))]
                    if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
                        values = values.T
                    if "q_proj" in name or "k_proj" in name:
                        dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
                        values = values.reshape(-1, 2, dim // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
                    want = quantized if values.ndim == 2 and "wpe" not in name else QUANTIZED[0]
                    if want == QUANTIZED[2] and values.shape[-1] % 32:
                        want = QUANTIZED[1]
                    self.assertEqual((tensor.tensor_type, list(tensor.shape)), (want, list(values.shape)[::-1]), name)
                    self.assertEqual(tensor.data.tobytes(), gguf.quants.quantize(numpy.ascontiguousarray(values), want).tobytes(), name)


if __name__ == "__main__":
    skips.main()
