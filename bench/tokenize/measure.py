"""Implements run.sh: times tern and `tokenizers` on the same texts, and compares their ids."""
import ctypes
import glob
import os
import statistics
import sys
import tempfile
import time

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from test_tokenizer_newest import LIB, LLAMA3, EncodeOpts, Ids, Ours, documents
from test_tokenizer_newest import trained as tern_trained

VOCABULARY = 32000


def corpus():
    """Returns the texts: files of this tree, and random Unicode."""
    names = sorted(name for end in ("md", "py") for name in glob.glob(f"**/*.{end}", recursive=True) if not name.startswith("build"))
    texts = []
    for name in names:
        with open(name, encoding="utf-8") as file:
            texts.append(file.read())
    return [text for text in texts if text] + [text for text in documents(7, 600) if text]


def byte_level(splits):
    """GPT-2's kind, after other pre_tokenizers."""
    tokenizer = Tokenizer(models.BPE())
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, own]) if splits else own
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def characters(marks):
    """Llama 2's kind: blanks are marks, by a pre_tokenizer or by normalizers, which leave a text one word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if marks:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer, dict(special_tokens=["<unk>"] + [f"<0x{b:02X}>" for b in range(256)], limit_alphabet=2000)


def wordpiece():
    """BERT's kind."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return tokenizer, dict(trainer=trainers.WordPieceTrainer, special_tokens=["[UNK]"], limit_alphabet=2000)


def unigram():
    """T5's kind, whose table of characters is Unicode's NFKC."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    return tokenizer, dict(trainer=trainers.UnigramTrainer, special_tokens=["<unk>"], unk_token="<unk>")


KINDS = {
    "GPT-2's expression": lambda: byte_level([]),
    "Llama 3's expression": lambda: byte_level([pre_tokenizers.Split(Regex(LLAMA3), "isolated")]),
    "Metaspace": lambda: characters(False),
    "Llama 2, where a text is one word": lambda: characters(True),
    "WordPiece, BERT": wordpiece,
    "Unigram, NFKC": unigram,
}


def trained(kind, texts):
    """A tokenizer of `tokenizers`. One that does not split texts gets the vocabulary of one that does."""
    tokenizer, options = KINDS[kind]()
    teacher = tokenizer if tokenizer.pre_tokenizer else characters(False)[0]
    trainer = options.pop("trainer", trainers.BpeTrainer)
    teacher.train_from_iterator(texts, trainer(vocab_size=VOCABULARY, show_progress=False, **options))
    if teacher is not tokenizer:
        tokenizer.model = teacher.model
    return tokenizer


class Tern:
    def __init__(self, tokenizer, threads):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tokenizer.json")
            tokenizer.save(path)
            self.ours = Ours("tern_tokenizer_open", path.encode())
        self.opts = EncodeOpts(ctypes.sizeof(EncodeOpts), True, False, threads)

    def encode(self, texts):
        """Returns the seconds, and the ids."""
        data = [text.encode() for text in texts]
        pointers, sizes, ids = (ctypes.c_char_p * len(data))(*data), (ctypes.c_size_t * len(data))(*map(len, data)), (Ids * len(data))()
        start = time.perf_counter()
        LIB.check("tern_tokenizer_encode_batch", self.ours.handle, pointers, sizes, ctypes.c_int64(len(data)), ctypes.byref(self.opts), ids)
        seconds = time.perf_counter() - start
        got = [one.ids[:one.count] for one in ids]
        for one in ids:
            LIB.tern_token_ids_free(ctypes.byref(one))
        return seconds, got


class Tokenizers:
    def __init__(self, tokenizer, name):
        self.call = getattr(tokenizer, name)

    def encode(self, texts):
        start = time.perf_counter()
        encodings = self.call(texts)
        seconds = time.perf_counter() - start
        return seconds, [encoding.ids for encoding in encodings]


def measure(tokenizer, texts, rounds, threads):
    """Returns {way: [MB per second]}. The first round is not counted."""
    ways = {"tern": Tern(tokenizer, threads), "encode_batch": Tokenizers(tokenizer, "encode_batch"), "encode_batch_fast": Tokenizers(tokenizer, "encode_batch_fast")}
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    rates = {way: [] for way in ways}
    for number in range(rounds + 1):
        all_ids = []
        for way, side in ways.items():
            seconds, ids = side.encode(texts)
            all_ids.append(ids)
            if number:
                rates[way].append(megabytes / seconds)
        if all_ids[0] != all_ids[1] or all_ids[1] != all_ids[2]:
            sys.exit("the ids differ")
    return rates


def training(texts):
    """Returns the seconds of tern, which trains on one thread, and of `tokenizers`."""
    start = time.perf_counter()
    tern_trained(texts, VOCABULARY, 0, []).close()
    middle = time.perf_counter()
    trained("GPT-2's expression", texts)
    return middle - start, time.perf_counter() - middle


def row(kind, rates):
    """A line of the table; the ratio is that of the medians to the faster of the others."""
    spans = [f"{min(of):.3g} to {max(of):.3g}" for of in rates.values()]
    ours, *theirs = (statistics.median(of) for of in rates.values())
    return f"| {kind} | {' | '.join(spans)} | {ours / max(theirs):.1f} |"


def main(rounds, threads, kinds):
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of `tokenizers`, which reads it when it first encodes
    texts = corpus()
    print(f"{sum(len(text.encode()) for text in texts) / 1e6:.1f} MB in {len(texts)} texts, vocabularies of {VOCABULARY}, {threads} threads, {rounds} rounds; MB/s\n")
    print("| | tern | `encode_batch` | `encode_batch_fast` | ratio |\n|---|---|---|---|---|")
    for kind in kinds or KINDS:
        tokenizer = trained(kind, texts)
        print(row(kind, measure(tokenizer, texts, rounds, threads)), flush=True)
        if tokenizer.pre_tokenizer:
            print(row(f"{kind}, one document", measure(tokenizer, ["\n".join(texts)], rounds, threads)), flush=True)
    if kinds:
        return
    ours, theirs = zip(*(training(texts) for _ in range(rounds)))
    print(f"\nTraining: tern {statistics.median(ours):.2g} s on one thread, tokenizers {statistics.median(theirs):.2g} s.")


if __name__ == "__main__":
    main(int((sys.argv[1:] or [3])[0]), int((sys.argv[2:] or [len(os.sched_getaffinity(0))])[0]), sys.argv[3:])
