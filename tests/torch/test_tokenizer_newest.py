"""tern's tokenizers compared with Hugging Face's: what is trained, ids and text of every part that tern reads, files in both directions."""
import base64
import ctypes
import importlib.util
import json
import os
import random
import tempfile
import unicodedata
import unittest

import peers

peers.enter()

import skips  # noqa: E402

if not importlib.util.find_spec("tokenizers"):
    skips.end("no tokenizers: run scripts/peers.sh")
for part in ("regex", "unicode"):
    if not skips.has_part(part):
        skips.end(f"this build has no {part}")

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

import tern  # noqa: E402


class Ids(ctypes.Structure):
    """tern_token_ids."""

    _fields_ = [("ids", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_int64), ("room", ctypes.c_int64)]


class Text(ctypes.Structure):
    """tern_text."""

    _fields_ = [("text", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("room", ctypes.c_size_t)]


class EncodeOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("add_special_tokens", ctypes.c_bool), ("encode_special_tokens", ctypes.c_bool), ("threads", ctypes.c_int)]


class DecodeOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("skip_special_tokens", ctypes.c_bool)]


class TrainOpts(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("texts", ctypes.POINTER(ctypes.c_char_p)), ("text_bytes", ctypes.POINTER(ctypes.c_size_t)),
                ("text_count", ctypes.c_int64), ("files", ctypes.c_void_p), ("file_count", ctypes.c_int64), ("vocab_size", ctypes.c_int64),
                ("min_frequency", ctypes.c_int64), ("special_tokens", ctypes.POINTER(ctypes.c_char_p)), ("special_count", ctypes.c_int64)]


LIB = tern.Library()


class Ours:
    """A tern_tokenizer."""

    def __init__(self, name, argument):
        self.handle, self.ids, self.text = ctypes.c_void_p(LIB.check(name, argument)), Ids(), Text()

    def close(self):
        LIB.tern_tokenizer_free(self.handle)
        LIB.tern_token_ids_free(ctypes.byref(self.ids))
        LIB.tern_text_free(ctypes.byref(self.text))

    def encode(self, text, add_special_tokens=True, encode_special_tokens=False):
        data = text.encode() if isinstance(text, str) else text
        opts = EncodeOpts(ctypes.sizeof(EncodeOpts), add_special_tokens, encode_special_tokens, 0)
        LIB.check("tern_tokenizer_encode", self.handle, data, ctypes.c_size_t(len(data)), ctypes.byref(opts), ctypes.byref(self.ids))
        return self.ids.ids[:self.ids.count]

    def taken(self):
        return ctypes.string_at(self.text.text, self.text.bytes).decode()

    def decode(self, ids, skip):
        opts = DecodeOpts(ctypes.sizeof(DecodeOpts), skip)
        LIB.check("tern_tokenizer_decode", self.handle, (ctypes.c_int32 * len(ids))(*ids), ctypes.c_int64(len(ids)), ctypes.byref(opts), ctypes.byref(self.text))
        return self.taken()

    def stream(self, ids, skip):
        opts, pieces = DecodeOpts(ctypes.sizeof(DecodeOpts), skip), []
        stream = ctypes.c_void_p(LIB.check("tern_decode_stream_new", self.handle, ctypes.byref(opts)))
        for i in ids:
            LIB.check("tern_decode_stream_step", stream, ctypes.c_int32(i), ctypes.byref(self.text))
            pieces.append(self.taken())
        LIB.check("tern_decode_stream_end", stream, ctypes.byref(self.text))
        LIB.tern_decode_stream_free(stream)
        return "".join(pieces) + self.taken()


def trained(texts, vocab_size, min_frequency, special):
    data = [text.encode() for text in texts]
    return Ours("tern_tokenizer_train", ctypes.byref(TrainOpts(
        ctypes.sizeof(TrainOpts), (ctypes.c_char_p * len(data))(*data), (ctypes.c_size_t * len(data))(*map(len, data)), len(data), None, 0, vocab_size,
        min_frequency, (ctypes.c_char_p * max(len(special), 1))(*[text.encode() for text in special]), len(special))))


# Characters of all planes that Unicode had long ago: the tables of the libraries are of different years.
OLD = [c for c in map(chr, range(0x110000)) if unicodedata.ucd_3_2_0.category(c) not in ("Cn", "Cs", "Co") and
       unicodedata.ucd_3_2_0.category(c) == unicodedata.category(c)]
LEXICON = ["the", "tern", "flies", "over", "Northern", "seas", "coding", "ing", "it's", "we'll", "I'LL", "don't", "ſ's", "tok", "Istanbul", "naïve"]
PIECES = ["<|end|>", "  <s> ", "</s>", " [MASK]  x", "<|special|>  ", "a[MASK]", "tok", "tokens", "\r\n", "\n\n", "def f(x):\n    return x ** 2\n",
          "x = {'a': [1, 2.5e-7]}", "٣٤٥", "½²", "Ⅷ", "\u180e", "\u0085", "ก็ดี", "नमस्ते", "안녕하세요", "こんにちは、世界", "👨‍👩‍👧 ❤️🇩🇪", "e\u0301\u0323o\u0308", "\x00\x07", "\ufeff"]


def documents(seed, count):
    """Returns texts of words, blanks, digits, punctuation, scripts and single characters of all planes."""
    rng, texts = random.Random(seed), []

    def piece():
        kind = rng.randrange(8)
        return (" ".join(rng.choices(LEXICON, k=rng.randint(1, 9))) + rng.choice([". ", "! ", "\n", ", "]) if kind < 3 else
                rng.choice(" \n\t\u3000\u00a0") * rng.randint(1, 30) if kind == 3 else
                "".join(rng.choices("0123456789", k=rng.randint(1, 12))) if kind == 4 else
                "".join(rng.choices("!@#$%^&*()-=_+[]{}|;:,.<>/?`~", k=rng.randint(1, 9))) if kind == 5 else
                rng.choice(PIECES) if kind == 6 else "".join(rng.choices(OLD, k=rng.randint(1, 8))))

    for _ in range(count):
        texts.append("".join(piece() for _ in range(rng.randint(1, 25))))
    return texts


LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
BEHAVIORS = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")


def byte_level(use_regex=True, add_prefix_space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def charsmap(rules):
    """Writes SentencePiece's table of what texts become: a double array as Darts-clone has it, and the texts."""
    units, bases, texts = {0: 0}, set(), b""
    places = {}
    for value in rules.values():
        places.setdefault(value, len(texts))
        texts += value.encode() + b"\0" if places[value] == len(texts) else b""

    def place(at, keys, depth):
        labels = sorted({key[depth] if depth < len(key) else 0 for key in keys})
        base = next(base for base in range(1 << 20) if base not in bases and not any(base ^ label in units for label in labels))
        bases.add(base)
        units[at] |= (at ^ base) << 10 | (0 in labels) << 8
        units.update({base ^ label: label for label in labels})
        for label in labels:
            if label:
                place(base ^ label, [key for key in keys if depth < len(key) and key[depth] == label], depth + 1)
            else:
                units[base] = 1 << 31 | places[rules[next(key for key in keys if depth == len(key)).decode()]]

    place(0, [key.encode() for key in rules], 0)
    trie = b"".join(units.get(i, 0).to_bytes(4, "little") for i in range(max(units) // 256 * 256 + 256))
    return base64.b64encode(len(trie).to_bytes(4, "little") + trie + texts).decode()


class TokenizerNewestTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts, cls.folder = documents(1, 150), tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.base = cls.peer(800, 0, ["<|end|>", "<s>", "</s>", "<pad>"])

    @classmethod
    def peer(cls, vocab_size, min_frequency, special):
        peer = Tokenizer(models.BPE())
        peer.pre_tokenizer, peer.decoder = byte_level(), decoders.ByteLevel()
        peer.train_from_iterator(cls.texts, trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=special, show_progress=False,
                                                                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        return peer

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def opened(self, peer):
        peer.save(self.path("tokenizer.json"))
        ours = Ours("tern_tokenizer_open", self.path("tokenizer.json").encode())
        self.addCleanup(ours.close)
        return ours

    def compare(self, peer, texts):
        """Ids with and without special tokens; text with and without them, as a whole and in a stream; ids in any order."""
        ours, rng = self.opened(peer), random.Random(5)
        size = LIB.tern_tokenizer_size(ours.handle)
        self.assertEqual(size, max(peer.get_vocab().values()) + 1)
        for text in texts:
            for add, plain in ((True, False), (False, True)):
                peer.encode_special_tokens = plain
                want = peer.encode(text, add_special_tokens=add).ids
                self.assertEqual(ours.encode(text, add, plain), want, ascii(text))
                for skip in (True, False):
                    decoded = peer.decode(want, skip_special_tokens=skip)
                    self.assertEqual(ours.decode(want, skip), decoded)
                    self.assertEqual(ours.stream(want, skip), decoded)
            ids = [rng.randrange(size) for _ in range(20)]
            for token in filter(lambda token: "\x00" not in token, map(peer.id_to_token, ids)):
                found = peer.token_to_id(token)  # None: what normalizers make of an added token
                self.assertEqual(LIB.tern_tokenizer_id(ours.handle, token.encode()), -1 if found is None else found)
            self.assertEqual(ours.decode(ids, False), peer.decode(ids, skip_special_tokens=False))

    def test_training(self):
        """The same vocabulary and merges; and `tokenizers` reads tern's file."""
        for seed, vocab_size, min_frequency, special in ((1, 700, 0, []), (2, 1500, 2, ["<|end|>", "the", "!"]), (3, 400, 30, ["<s>"])):
            type(self).texts, before = documents(seed, 100), self.texts
            peer, ours = self.peer(vocab_size, min_frequency, special), trained(self.texts, vocab_size, min_frequency, special)
            type(self).texts = before
            self.addCleanup(ours.close)
            LIB.check("tern_tokenizer_save", ours.handle, self.path("ours.json").encode())
            back = Tokenizer.from_file(self.path("ours.json"))
            want, got = json.loads(peer.to_str())["model"], json.loads(back.to_str())["model"]
            self.assertEqual(got["vocab"], want["vocab"])
            self.assertEqual(got["merges"], want["merges"])
            for text in documents(seed + 10, 20):
                self.assertEqual(ours.encode(text), back.encode(text).ids)

    def test_pre_tokenizers(self):
        texts = documents(20, 25)
        kinds = [byte_level(), byte_level(add_prefix_space=True), [split(LLAMA3)], [split(expression) for expression in DEEPSEEK],
                 [pre_tokenizers.Digits(True), byte_level()], [pre_tokenizers.Digits(False)], [pre_tokenizers.Whitespace()],
                 [pre_tokenizers.WhitespaceSplit()], [pre_tokenizers.BertPreTokenizer()], [split(r"(?<=\s)\S+|^x|$\n|\p{^L}+")],
                 [pre_tokenizers.Metaspace(), byte_level(add_prefix_space=True)], [pre_tokenizers.Metaspace("e", "first"), pre_tokenizers.Metaspace("t", "always")],
                 [pre_tokenizers.CharDelimiterSplit("e")], [split(r"[\p{Han}]+|\p{Hiragana}+|\W+|\h{2}|\w\d")], [split(r"x*")], [split(r"x*", "contiguous")], [split(r"(?=[et])", "merged_with_next")], [split(r"x*", "merged_with_previous", True)]]
        for behavior in BEHAVIORS:
            kinds += [[pre_tokenizers.Punctuation(behavior)], [split(r"[aeiou ]", behavior)], [split(r"\w+|\d", behavior, True)], [pre_tokenizers.Split("e", behavior)]]
        for kind in kinds:
            peer = Tokenizer.from_str(self.base.to_str())
            is_last = isinstance(kind, pre_tokenizers.ByteLevel)
            has_last = not is_last and isinstance(kind[-1], pre_tokenizers.ByteLevel)
            peer.pre_tokenizer = kind if is_last else pre_tokenizers.Sequence(kind + ([] if has_last else [byte_level(False)]))
            with self.subTest(json.loads(peer.to_str())["pre_tokenizer"]):
                self.compare(peer, texts)

    def test_added_tokens(self):
        peer = Tokenizer.from_str(self.base.to_str())
        peer.add_tokens([AddedToken("tok", single_word=True), AddedToken("[MASK]", lstrip=True), AddedToken("ing", normalized=False), AddedToken("<s", normalized=False),
                         AddedToken("<|special|>", lstrip=True, rstrip=True, special=True)])
        peer.add_special_tokens([AddedToken("<pad>", rstrip=True)])
        peer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])])
        self.compare(peer, documents(30, 60))
        peer.normalizer = normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace("k", " k")])
        self.compare(Tokenizer.from_str(peer.to_str()), documents(32, 30))

    def test_ignored_merges(self):
        file = json.loads(self.base.to_str())
        file["model"]["ignore_merges"] = True
        file["model"]["merges"] = file["model"]["merges"][:50]
        self.compare(Tokenizer.from_str(json.dumps(file)), documents(31, 30))

    def test_characters(self):
        """Llama 2's kind: byte_fallback, fuse_unk, normalizers or Metaspace, decoders."""
        trainer = trainers.BpeTrainer(vocab_size=900, limit_alphabet=150, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)], show_progress=False)
        learnt = Tokenizer(models.BPE(unk_token="<unk>"))
        learnt.pre_tokenizer = pre_tokenizers.Metaspace()
        learnt.train_from_iterator(self.texts, trainer)
        model, texts = json.loads(learnt.to_str())["model"], documents(40, 25)
        marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        spaces = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
        kinds = [(marks, None, spaces, fallback, fuse) for fallback in (True, False) for fuse in (True, False)]
        kinds += [(None, pre_tokenizers.Metaspace("▁", scheme, cuts), decoders.Metaspace("▁", scheme, cuts), True, True)
                  for scheme in ("always", "first", "never") for cuts in (True, False)]
        kinds += [(normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), "▁"), normalizers.Replace(Regex("x*"), "-")]), None, None, True, True), (normalizers.Replace("", "-"), None, None, True, True)]
        for normalizer, pre_tokenizer, decoder, fallback, fuse in kinds:
            peer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=fallback, fuse_unk=fuse))
            file = json.loads(peer.to_str())
            file["model"].update(vocab=model["vocab"], merges=model["merges"])
            file["added_tokens"] = [dict(id=i, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
                                    for i, text in enumerate(("<unk>", "<s>", "</s>"))]
            peer = Tokenizer.from_str(json.dumps(file))
            for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
                if part:
                    setattr(peer, name, part)
            peer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
            with self.subTest(normalizer=normalizer, pre_tokenizer=pre_tokenizer, fallback=fallback, fuse=fuse):
                self.compare(peer, texts)

    def affixed(self, texts):
        """BPE whose tokens say whether they begin or end a word, as those of CLIP and of CharBPETokenizer."""
        kinds = [(None, "</w>", [pre_tokenizers.BertPreTokenizer()], decoders.BPEDecoder("</w>")), ("##", None, [pre_tokenizers.Whitespace()], decoders.WordPiece("##", False)),
                 ("#", "$", [pre_tokenizers.WhitespaceSplit()], decoders.BPEDecoder("$")), (None, "</w>", [split(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"), byte_level(False)], decoders.ByteLevel())]
        for prefix, suffix, splits, decoder in kinds:
            for unk, fuse in ((None, False), ("<unk>", False), ("<unk>", True)):
                affixes = {name: value for name, value in (("continuing_subword_prefix", prefix), ("end_of_word_suffix", suffix)) if value}
                peer = Tokenizer(models.BPE(fuse_unk=fuse, **affixes, **{"unk_token": unk} if unk else {}))
                peer.pre_tokenizer, peer.decoder = pre_tokenizers.Sequence(splits), decoder
                peer.train_from_iterator(self.texts, trainers.BpeTrainer(vocab_size=700, limit_alphabet=200, special_tokens=["<unk>", "<s>"], show_progress=False, **affixes))
                yield (prefix, suffix, unk, fuse), peer

    def test_affixes(self):
        texts = documents(60, 20)
        for kind, peer in self.affixed(texts):
            with self.subTest(kind):
                self.compare(peer, texts)

    def wordpiece(self, prefix="##", vocab_size=1500, **options):
        peer = Tokenizer(models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=prefix, **options))
        peer.normalizer, peer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        peer.train_from_iterator(self.texts, trainers.WordPieceTrainer(vocab_size=vocab_size, limit_alphabet=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                                                       continuing_subword_prefix=prefix, show_progress=False))
        peer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        peer.decoder = decoders.WordPiece(prefix)
        return peer

    def test_wordpiece(self):
        """BERT's kind; words that are too long; tokens from which the decoder takes blanks."""
        texts = documents(61, 40) + ["x" * 100 + " " + "y" * 101, "ab" * 5000, "don ' t . I do not , we 've n't ! it 's ?", "[MASK]a[SEP]", ""]
        for options, cleanup in (({}, True), (dict(prefix="@"), False), (dict(prefix="\u0301\u4e16", max_input_chars_per_word=7), True)):
            peer = self.wordpiece(**options)
            peer.decoder = decoders.WordPiece(options.get("prefix", "##"), cleanup)
            peer.add_tokens([AddedToken(text, normalized=False) for text in ("do not", "'", "n't", "'s", "a . ?", "' ")] + [AddedToken("NoRthern"), AddedToken("n\u00e4", single_word=True)])
            with self.subTest(options):
                self.compare(peer, texts)

    def test_normalizers(self):
        """Each one beside `tokenizers`, on runs of characters that Unicode had long ago, in their order and mixed."""
        bert = [normalizers.BertNormalizer(clean, chinese, accents, lower) for clean in (True, False) for chinese in (True, False)
                for accents in (True, False, None) for lower in (True, False)]
        kinds = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents(), normalizers.Nmt(), normalizers.Strip(),
                 normalizers.Strip(left=False), normalizers.Strip(right=False), *bert, normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
                 normalizers.Sequence([normalizers.NFKC(), normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]), normalizers.Prepend("x ")])]
        rng = random.Random(8)
        mixed = OLD * 2
        rng.shuffle(mixed)
        marks = [c for c in OLD if unicodedata.combining(c)]
        texts = ["".join(OLD[i : i + 2000]) for i in range(0, len(OLD), 2000)] + ["".join(mixed[i : i + 500]) for i in range(0, 20000, 500)]
        texts += ["".join(rng.choices("aeE\u0130 \x07\u00c4\u1112\u1161\u11ab\t\r\n\u3000\ufffd\x00", k=5) + rng.choices(marks, k=5) + rng.choices(OLD, k=2)) for _ in range(200)]
        texts += documents(62, 60)
        for kind in kinds:
            peer = Tokenizer.from_str(self.base.to_str())
            peer.normalizer = kind
            ours = self.opened(peer)
            with self.subTest(json.loads(peer.to_str())["normalizer"]):
                for text in texts[:: 8 if kind in bert[1:] else 1]:
                    self.assertEqual(ours.encode(text), peer.encode(text).ids, ascii(text))

    def test_precompiled(self):
        """T5's normalizer: what NFKC changes, blanks, a text of several, none, and keys that others begin with."""
        rules = {c: unicodedata.normalize("NFKC", c) for c in OLD[:: 7] if unicodedata.normalize("NFKC", c) != c}
        rules |= {"\t": " ", "\r": " ", "\n": " ", "\u3000": " ", "a": "b", "ab": "x", "e\u0301": "\u00e9", "\u0302": "", "\u00c4": "Ae", "\u2603": "snow man", "\U0001f1e9": "D", "x": "x", "\x07": ""}
        marks = [c for c in OLD if unicodedata.combining(c)]
        rng = random.Random(9)
        texts = documents(64, 40) + ["".join(rng.choices("abeEx\u00c4 \r\n\t\u1112\u1161\u11ab\u3000\U0001f1e9\U0001f1ea\u2603\u200d\x07", k=9) + rng.choices(marks, k=3) + rng.choices(OLD, k=2)) for _ in range(800)]
        for some in (rules, {"\u2603": "snow"}):
            file = json.loads(self.base.to_str())
            file["normalizer"] = dict(type="Precompiled", precompiled_charsmap=charsmap(some))
            peer = Tokenizer.from_str(json.dumps(file))
            ours = self.opened(peer)
            for text in texts:
                self.assertEqual(ours.encode(text), peer.encode(text).ids, ascii(text))

    def unigram(self, **more):
        """What is learnt from texts without most characters."""
        peer = Tokenizer(models.Unigram())
        peer.pre_tokenizer = pre_tokenizers.Metaspace()
        peer.train_from_iterator(["".join(c for c in text if c < "\u0250") for text in self.texts], trainers.UnigramTrainer(
            vocab_size=900, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
        file = json.loads(peer.to_str())
        file["model"].update(more)
        return file

    def test_unigram(self):
        """T5's kind, and XLM-R's and ALBERT's; with byte_fallback; a text as one word; a token that is in the vocabulary twice."""
        texts, every = documents(63, 40) + ["\u2603\u2603\u2603", "a\u2603b", "<unk>\u2603", "</s> x"], [f"<0x{b:02X}>" for b in range(256)]
        for fallback in (False, True):
            for splits in ([pre_tokenizers.Metaspace()], [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()], None):
                file = self.unigram(byte_fallback=fallback)
                if fallback:
                    file["model"]["vocab"] += [[text, -30.0] for text in every] + [["tern", -20.0], ["tern", -5.0]]
                peer = Tokenizer.from_str(json.dumps(file))
                peer.pre_tokenizer = pre_tokenizers.Sequence(splits or [])
                peer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Replace("\u2581", " "), decoders.Fuse()]) if fallback else decoders.Metaspace()
                peer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
                with self.subTest(fallback=fallback, splits=splits):
                    self.compare(peer, texts)

    def test_gpt2_files(self):
        """vocab.json and merges.txt, as GPT-2 has them."""
        folder = self.path("gpt2")
        os.mkdir(folder)
        self.base.model.save(folder)
        ours = Ours("tern_tokenizer_open", folder.encode())
        self.addCleanup(ours.close)
        for text in documents(50, 30):
            text = text.replace("<", "(")
            self.assertEqual(ours.encode(text), self.base.encode(text).ids)

    def test_broken_bytes(self):
        """Read as Python reads them with errors="replace"."""
        ours, rng = self.opened(self.base), random.Random(6)
        for _ in range(200):
            data = bytes(rng.choice((0x41, 0x80, 0xbf, 0xc2, 0xe0, 0xed, 0xf0, 0xf4, 0xff, 0x90, 0xa0, 0x9f, rng.randrange(256))) for _ in range(rng.randrange(12)))
            self.assertEqual(ours.encode(data), self.base.encode(data.decode(errors="replace")).ids)

    def test_long_runs(self):
        ours = self.opened(self.base)
        for text in (" " * 100000, "a" * 50000, "1" * 30001, "\n" * 20000 + "x", "é" * 30000, "the" * 20000, "!?" * 20000):
            self.assertEqual(ours.encode(text), self.base.encode(text).ids)


if __name__ == "__main__":
    skips.main()
