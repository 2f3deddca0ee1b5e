# SPDX-License-Identifier: Apache-2.0
"""Errors: what djinnd or the client library answered, by group and with their stable code."""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .models import Generated


class Error(Exception):
    """Something that djinnd or the client library refused or could not do.

    `code` is the stable name, as in logs and in `djinnctl --json` ("not_found"); `number` is its
    number on the wire. The text says what, why and what next. Where rows of `Generator.generate()`
    failed behind tokens, `generated` is its answer, as far as there is one.
    """

    generated: "Generated | None" = None

    def __init__(self, number: int, code: str, message: str) -> None:
        super().__init__(message)
        self.number = number
        self.code = code

    def __reduce__(self) -> tuple[type["Error"], tuple[int, str, str]]:
        return type(self), (self.number, self.code, str(self))


class RequestError(Error):
    """1xx: the request itself is wrong; repeating it gives the same answer."""


class HandleError(Error):
    """2xx: a name or handle does not lead to a live object, or nobody listens."""


class LimitError(Error):
    """3xx: not allowed, or over a limit of this client's own."""


class ResourceError(Error):
    """4xx: a resource of the machine gave out."""


class LostError(Error, RuntimeError):
    """5xx: a process or device went away, or the run was given up. PyTorch's own errors of a device
    are RuntimeErrors, and so is this."""


class IntegrityError(Error):
    """6xx: what was read is not what was promised."""


class InternalError(Error):
    """9xx: a fault of djinnd's own, caught before it did harm."""


class PerformanceWarning(UserWarning):
    """Something goes the slow way, and why: once of each kind in a process."""


def unknown(sentence: str, name: str, known: Iterable[str]) -> str:
    """The sentence, and the name that may have been meant."""
    near = difflib.get_close_matches(name, known, 1)
    return f"{sentence}. Did you mean {near[0]!r}?" if near else f"{sentence}."


_GROUPS: dict[int, type[Error]] = {
    1: RequestError,
    2: HandleError,
    3: LimitError,
    4: ResourceError,
    5: LostError,
    6: IntegrityError,
    9: InternalError,
}


def error_from(number: int, code: str, message: str) -> Error:
    """The error of a number; a number that a newer daemon sends is a plain Error."""
    return _GROUPS.get(number // 100, Error)(number, code, message)
