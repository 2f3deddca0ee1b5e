# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from typing import Any

from .errors import Error
from .shapes import Expr, Symbol

STAGING_BYTES_DEFAULT: int
VERSION: str

# index, generation, and the number of the session that it belongs to: 1, 2, ... of a Session
Handle = tuple[int, int, int]
# dtype, sizes, strides, offset, bytes (empty unless in staging), ref
RunOutput = tuple[str, tuple[int, ...], tuple[int, ...], int, bytearray, Handle | None]

class Program:
    name: str
    symbols: list[Symbol]
    inputs: list[tuple[str, str, list[Expr]]]
    outputs: list[tuple[str, str | None, list[Expr] | None]]

class Session:
    id: str
    threads: int
    staging_bytes: int
    quota_bytes: int
    closed: bool
    def close(self) -> None: ...
    def reconnect(self, wait_ms: int) -> None: ...
    def after_fork(self) -> None: ...
    def open_directory(
        self, path: str, plan: Any, pin: bool, keep_alive_ms: int | None
    ) -> dict[str, Any]: ...
    def open_files(
        self, label: str, paths: Sequence[str], plan: Any, pin: bool, keep_alive_ms: int | None
    ) -> dict[str, Any]: ...
    def close_model(self, model: int, session: int) -> None: ...
    def unload_model(self, model: int) -> None: ...
    def define(self, source: str, model: int, session: int) -> Program: ...
    def status(self) -> dict[str, Any]: ...
    def sessions(self) -> list[dict[str, Any]]: ...
    def models(self) -> list[dict[str, Any]]: ...
    def run(
        self,
        program: Program,
        symbols: Sequence[int],
        inputs: dict[str, Any],
        outputs: list[int | str | None],
        sequence: Handle | None,
    ) -> list[RunOutput]: ...
    def put(self, data: Any) -> Handle: ...
    def read(
        self,
        ref: Handle,
        dtype: str,
        sizes: Sequence[int],
        strides: Sequence[int],
        offset: int,
        out: Any,
    ) -> None: ...
    def release(self, ref: Handle) -> None: ...
    def release_later(self, ref: Handle) -> None: ...
    def make_sequence(
        self,
        rows: int,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: str,
        capacity: int,
        reorderable: bool,
    ) -> Handle: ...
    def crop(self, sequence: Handle, length: int) -> None: ...
    def reorder(self, sequence: Handle, rows: Sequence[int]) -> None: ...
    def drop_sequence(self, sequence: Handle) -> None: ...

class Encoder:
    note: str
    hidden: int
    positions: int
    vocabulary: int
    model: dict[str, Any]
    def __init__(
        self, session: Session, directory: str, numerics: str | None, weights: str | None
    ) -> None: ...
    def encode(
        self, ids: Any, mask: Any, types: Any, rows: int, tokens: int, want_hidden: bool
    ) -> tuple[str, bytearray, bytearray]: ...

class GenerateOptions:
    max_new_tokens: int
    min_new_tokens: int
    stop_tokens: list[int]
    pad_token: int
    greedy: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    random_offset: int

class Generator:
    note: str
    layers: int
    kv_heads: int
    head_dim: int
    positions: int
    vocabulary: int
    dtype: str
    begin_token: int
    end_tokens: list[int]
    model: dict[str, Any]
    def __init__(
        self, session: Session, directory: str, numerics: str | None, weights: str | None
    ) -> None: ...
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: GenerateOptions,
        on_token: Callable[[int, int, int], bool | None] | None,
    ) -> tuple[list[list[int]], int, list[Error | None]]: ...
    def source(self, phase: str, all_logits: bool) -> str: ...

def connect(
    host: str,
    name: str,
    staging_bytes: int,
    observer: bool,
    reconnect_wait_ms: int | None,
    device: str,
    service_class: str,
    begin_within_ms: int,
) -> Session: ...
def parse(source: str, model: int, session: int) -> Program: ...
def id_text(id: int) -> str: ...
