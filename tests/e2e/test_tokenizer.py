# SPDX-License-Identifier: Apache-2.0
"""Tokens of text are those of `tokenizers`, both ways, for the forms that models' files have."""

import ctypes
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from private_daemon import BIN
from tokenizer_forms import FORMS, all_characters, lines, random_texts
from tokenizers import Tokenizer

FULL = os.environ.get("DJINN_TEST_TIER") == "full"
pytestmark = pytest.mark.ci


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 508)]


class Refused(Exception):
    def __init__(self, error: Error) -> None:
        super().__init__(error.message.decode())
        self.code = error.code


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(str(BIN.parent / "lib/libdjinn-client.so"))


class OurTokenizer:
    """djinn_tokenizer of djinn.h."""

    def __init__(self, directory: Path) -> None:
        self.handle = ctypes.c_void_p()
        self.tokens = (ctypes.c_int32 * (1 << 16))()
        self.text = ctypes.create_string_buffer(1 << 20)
        self.count = ctypes.c_size_t()
        self.call("djinn_tokenizer_open", str(directory).encode(), ctypes.byref(self.handle))

    def __del__(self) -> None:
        library().djinn_tokenizer_close(self.handle)

    def call(self, name: str, *arguments: object) -> None:
        error = Error()
        if getattr(library(), name)(*arguments, ctypes.byref(error)) != 0:
            raise Refused(error)

    def encode(self, text: str | bytes, special: bool = True) -> list[int]:
        given = text if isinstance(text, bytes) else text.encode()
        size = ctypes.c_size_t(len(given))
        room = ctypes.c_size_t(len(self.tokens))
        count = ctypes.byref(self.count)
        self.call(
            "djinn_tokenizer_encode",
            self.handle,
            given,
            size,
            int(special),
            self.tokens,
            room,
            count,
        )
        assert self.count.value <= len(self.tokens)
        return self.tokens[: self.count.value]

    def decode(self, ids: list[int], special: bool) -> str:
        given = (ctypes.c_int32 * len(ids))(*ids)
        room = ctypes.c_size_t(len(self.text))
        size = ctypes.c_size_t(len(ids))
        count = ctypes.byref(self.count)
        self.call(
            "djinn_tokenizer_decode", self.handle, given, size, int(special), self.text, room, count
        )
        assert self.count.value <= len(self.text)
        return self.text.raw[: self.count.value].decode()

    def streamed(self, ids: list[int]) -> Iterator[str]:
        stream, part, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        out = (ctypes.byref(part), ctypes.byref(size))
        self.call("djinn_text_open", self.handle, ctypes.byref(stream))
        for token in ids:
            self.call("djinn_text_next", stream, token, *out)
            yield ctypes.string_at(part, size.value).decode()
        self.call("djinn_text_finish", stream, *out)
        yield ctypes.string_at(part, size.value).decode()
        library().djinn_text_close(stream)


def opened(file: dict | str, directory: Path) -> OurTokenizer:
    text = file if isinstance(file, str) else json.dumps(file)
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    return OurTokenizer(directory)


@pytest.fixture(scope="module", params=FORMS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, OurTokenizer]:
    theirs = FORMS[request.param]()
    directory = tmp_path_factory.mktemp(request.param.replace("/", "-"))
    ours = opened(theirs.to_str(), directory)
    theirs.no_truncation()  # as transformers does for one text
    theirs.no_padding()
    return Tokenizer.from_str(theirs.to_str()), ours


def differences(both: tuple[Tokenizer, OurTokenizer], texts: list[str]) -> list[object]:
    theirs, ours = both
    found = []
    for text, encoding in zip(texts, theirs.encode_batch(texts), strict=True):
        got = ours.encode(text)
        if got != encoding.ids:
            found.append((text, encoding.ids, got))
    return found


def told(found: list[object], of: int) -> str:
    return f"{len(found)} of {of} differ: {found[:2]!r}"[:3000]


@functools.cache
def texts() -> list[str]:
    ours = lines() if FULL else lines()[3::320]
    joined = ["\n".join(ours[at : at + 7]) for at in range(0, len(ours), 50)]
    return [*ours, *joined, *random_texts(15, 20_000 if FULL else 300), "", " ", "\n"]


def test_lines_of_text_are_the_same_tokens(both: tuple[Tokenizer, OurTokenizer]) -> None:
    given = texts()
    found = differences(both, given)
    assert not found, told(found, len(given))


# Forms whose splits alone differ: what they split by is seen by few characters of each kind.
SPLITS = ("split_", "punctuation_", "digits", "each_digit", "bert_words", "whitespace")


def characters(form: str) -> list[str]:
    if FULL:
        return all_characters()
    some = all_characters()[:1024:8] + all_characters()[1024::128]
    return some[::10] if form.startswith(SPLITS) else some


def test_every_character_is_the_same_tokens(
    request: pytest.FixtureRequest, both: tuple[Tokenizer, OurTokenizer]
) -> None:
    given = characters(request.node.callspec.params["both"])
    found = differences(both, given)
    assert not found, told(found, len(given))


def test_without_special_tokens_none_is_put_there(both: tuple[Tokenizer, OurTokenizer]) -> None:
    theirs, ours = both
    text = "Some text, and more."
    assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False).ids


def test_tokens_are_the_same_text_at_once_and_one_by_one(
    both: tuple[Tokenizer, OurTokenizer],
) -> None:
    theirs, ours = both
    given = [theirs.encode(text).ids for text in texts()[:: 1 if FULL else 6]]
    size = theirs.get_vocab_size()
    # Tokens as a model may say them, that no text has in this order.
    given += [
        [(at * at * 7 + 13 * step) % (size + 5) for step in range(at % 40)]
        for at in range(300 if FULL else 80)
    ]
    found = []
    for ids in given:
        for special in (False, True):
            text = theirs.decode(ids, skip_special_tokens=not special)
            if ours.decode(ids, special) != text:
                found.append((ids, text, ours.decode(ids, special)))
        parts = list(ours.streamed(ids))
        if "".join(parts) != theirs.decode(ids):
            found.append((ids, theirs.decode(ids), parts))
    assert not found, told(found, len(given))
