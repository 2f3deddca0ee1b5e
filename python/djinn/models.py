# SPDX-License-Identifier: Apache-2.0
"""Models that djinnd runs whole, opened from Hugging Face directories."""

import os
import queue
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _client, arrays
from .errors import Error, error_from
from .program import SequenceGroup
from .session import Model, PathLike, Session


def _tell(note: str) -> None:
    if note:
        warnings.warn(note, stacklevel=3)


class Encoder:
    """A BERT model: token ids to hidden states and sentence embeddings. `numerics` and `weights`
    are as `Generator` has them."""

    def __init__(
        self,
        session: Session,
        path: PathLike,
        *,
        numerics: str | None = None,
        weights: str | None = None,
    ) -> None:
        self._raw = _client.Encoder(session.raw, os.fspath(path), numerics, weights)
        _tell(self._raw.note)
        self.model = Model(session, self._raw.model)
        self.hidden = self._raw.hidden
        self.positions = self._raw.positions

    def __repr__(self) -> str:
        return f"djinn.Encoder({self.model!r}, hidden={self.hidden}, positions={self.positions})"

    def encode(self, ids: Any, mask: Any = None, types: Any = None) -> arrays.Array:
        """The last hidden state [rows, tokens, hidden] of int64 ids [rows, tokens].

        `mask` is 1 for a token and 0 for padding, which stands on the right. What padding itself
        is encoded to means nothing."""
        rows, tokens, dtype, hidden, _ = self._run(ids, mask, types, True)
        return arrays.from_bytes(hidden, dtype, (rows, tokens, self.hidden))

    def embed(self, ids: Any, mask: Any = None, types: Any = None) -> arrays.Array:
        """Sentence embeddings [rows, hidden]: the mean over a row's tokens, of length 1."""
        rows, _, dtype, _, embedding = self._run(ids, mask, types, False)
        return arrays.from_bytes(embedding, dtype, (rows, self.hidden))

    def _run(
        self, ids: Any, mask: Any, types: Any, want_hidden: bool
    ) -> tuple[int, int, str, bytearray, bytearray]:
        grid = _int64(ids, "ids")
        if grid.ndim != 2:
            raise ValueError(f"ids must be [rows, tokens], and have shape {grid.shape}")
        rows, tokens = grid.shape
        others = _like(grid, mask, "mask"), _like(grid, types, "types")
        return rows, tokens, *self._raw.encode(grid, *others, rows, tokens, want_hidden)


def _like(grid: NDArray[np.int64], values: Any, what: str) -> NDArray[np.int64] | None:
    array = None if values is None else _int64(values, what)
    if array is not None and array.shape != grid.shape:
        raise ValueError(f"{what} must have the shape of ids, {grid.shape}, not {array.shape}")
    return array


def _int64(values: Any, what: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iub":
        raise TypeError(f"{what} must be integers, and are {array.dtype}")
    return np.require(array, np.int64, "C")


@dataclass(frozen=True, slots=True)
class Token:
    """One token of one row of a generation; index counts from 0 in each row."""

    row: int
    index: int
    token: int


@dataclass(frozen=True)
class Generated:
    """What a generation made: by row the new tokens, up to and with a stop token."""

    tokens: list[list[int]]
    random_offset: int  # the next unused one of the seed
    errors: list[Error | None] = field(default_factory=list)
    """Why a row is not whole; empty where all are."""


class Generator:
    """A model that generates: prompts of token ids to new tokens. The loop over tokens runs in
    djinnd. `path` is what `djinn.export` wrote to, or a Hugging Face directory of a Llama model.

    `numerics` is "exact", with PyTorch's bits, "fast", with djinn's own kernels where they fit, or
    "fast-only", which is refused where they do not; None is what `djinnctl load --numerics` has
    said of the model, or else djinnd's `lane.numerics`. `weights` is "int8", a form of matrices
    that is a model of its own and computed in fast numerics, or None."""

    def __init__(
        self,
        session: Session,
        path: PathLike,
        *,
        numerics: str | None = None,
        weights: str | None = None,
    ) -> None:
        self._session = session
        self._raw = _client.Generator(session.raw, os.fspath(path), numerics, weights)
        _tell(self._raw.note)
        self.model = Model(session, self._raw.model)
        self.positions = self._raw.positions
        self.vocabulary = self._raw.vocabulary
        self.begin_token: int | None = self._raw.begin_token if self._raw.begin_token >= 0 else None
        self.end_tokens: list[int] = self._raw.end_tokens

    def __repr__(self) -> str:
        sizes = f"vocabulary={self.vocabulary}, positions={self.positions}"
        return f"djinn.Generator({self.model!r}, {sizes})"

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        on_token: Callable[[Token], bool | None] | None = None,
        **options: Any,
    ) -> Generated:
        """Generates and waits. Rows of different lengths are padded on the left; those of an
        exported model are generated each as it is alone: with "fast" numerics, where no token is
        drawn, at the same time, else one after the other. `begin_within` is of the first of these.
        Where one fails behind tokens, the error is that of the first that did, and its `generated`
        is what all rows said, with the `errors` of those that are not whole.

        `on_token` sees each token as it comes; False from it gives up the rest. Options:
        max_new_tokens (64), min_new_tokens, stop_tokens (the model's end tokens), pad_token,
        temperature (None: greedy), top_k, top_p, min_p, repetition_penalty, seed (drawn where it
        matters), random_offset.
        """
        if any(isinstance(one, (str, bytes)) for one in (prompts, *prompts)):
            raise TypeError(
                "A prompt is a text, and has to be its tokens: the tokenizer of the model makes "
                "them of it. Give a list of them for each row, like [[256, 84, 104]]."
            )
        callback = None
        if on_token is not None:

            def callback(row: int, index: int, token: int) -> bool | None:
                return on_token(Token(row, index, token))

        generated = Generated(
            *self._raw.generate(
                [list(prompt) for prompt in prompts], self._options(**options), callback
            )
        )
        for row, error in enumerate(generated.errors):
            if error is not None:
                where = f"Row {row + 1} of {len(generated.errors)}"
                failure = error_from(error.number, error.code, f"{where}: {error}")
                failure.generated = generated
                raise failure
        return generated

    def stream(self, prompts: Sequence[Sequence[int]], **options: Any) -> Iterator[Token]:
        """Yields tokens as they come. Whoever stops iterating gives up the rest."""
        arrived: queue.SimpleQueue[Token | BaseException | None] = queue.SimpleQueue()
        given_up = threading.Event()

        def on_token(token: Token) -> bool:
            arrived.put(token)
            return not given_up.is_set()

        def work() -> None:
            try:
                self.generate(prompts, on_token=on_token, **options)
                arrived.put(None)
            except BaseException as error:
                arrived.put(error)

        thread = threading.Thread(target=work, name="djinn-stream", daemon=True)
        thread.start()
        try:
            while (item := arrived.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            given_up.set()
            thread.join()

    def sequence(self, rows: int, capacity: int, reorderable: bool = False) -> SequenceGroup:
        """An empty sequence group for this model's programs."""
        raw = self._raw
        return self._session.sequence(
            rows, raw.layers, raw.kv_heads, raw.head_dim, raw.dtype, capacity, reorderable
        )

    def source(self, phase: str, all_logits: bool = False) -> str:
        """The SRG text of one of the model's programs: phase is "prefill", "prefill_masked",
        "decode" or "decode_masked"."""
        return self._raw.source(phase, all_logits)

    def _options(
        self,
        *,
        max_new_tokens: int = 64,
        min_new_tokens: int = 0,
        stop_tokens: Sequence[int] | None = None,
        pad_token: int | None = None,
        temperature: float | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        random_offset: int = 0,
    ) -> _client.GenerateOptions:
        options = _client.GenerateOptions()
        options.max_new_tokens = max_new_tokens
        options.min_new_tokens = min_new_tokens
        options.stop_tokens = list(self.end_tokens if stop_tokens is None else stop_tokens)
        options.pad_token = (self.end_tokens or [0])[0] if pad_token is None else pad_token
        options.greedy = temperature is None
        options.temperature = 1.0 if temperature is None else temperature
        options.top_k = top_k
        options.top_p = top_p
        options.min_p = min_p
        options.repetition_penalty = repetition_penalty
        options.seed = secrets.randbits(64) if seed is None else seed
        options.random_offset = random_offset
        return options
