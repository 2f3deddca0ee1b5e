# SPDX-License-Identifier: Apache-2.0
"""Symbols and sizes of a program: what a call's arrays say of its symbols.

A size is affine in the symbols: `(constant, [(symbol, coefficient), ...])`.
"""

from collections.abc import Iterable, Mapping, Sequence

Expr = tuple[int, list[tuple[int, int]]]
Symbol = tuple[str, int, int, str]  # name, least, greatest, who sets it: "client" or "sequence"


def evaluate(expr: Expr, values: Sequence[int]) -> int:
    constant, terms = expr
    return constant + sum(coefficient * values[symbol] for symbol, coefficient in terms)


def _solve(expr: Expr, size: int, values: list[int | None]) -> bool:
    """Sets the one symbol of expr that has no value yet, if size gives it one."""
    constant, terms = expr
    unknown = [(symbol, factor) for symbol, factor in terms if values[symbol] is None]
    if len(unknown) != 1:
        return False
    known = sum(factor * (values[symbol] or 0) for symbol, factor in terms)
    symbol, factor = unknown[0]
    value, rest = divmod(size - constant - known, factor)
    if rest != 0:
        return False
    values[symbol] = value
    return True


def bind_symbols(
    symbols: Sequence[Symbol],
    given: Mapping[str, int],
    shapes: Iterable[tuple[Sequence[Expr], Sequence[int]]],
) -> list[int]:
    """Values of all symbols, from those given by name and from (declared sizes, shape) pairs.

    A symbol that the daemon sets is 0 where nothing says otherwise. ValueError names a symbol that
    is unknown or has no value.
    """
    names = [name for name, *_ in symbols]
    for name in given:
        if name not in names:
            raise ValueError(f"the program has no symbol {name!r}; it has {names}")
    values = [given.get(name) for name in names]
    equations = [pair for sizes, shape in shapes for pair in zip(sizes, shape, strict=False)]
    while any([_solve(expr, size, values) for expr, size in equations]):
        pass
    for i, (name, _, _, setter) in enumerate(symbols):
        if values[i] is None and setter == "client":
            raise ValueError(f"no input tells the symbol {name!r}: give symbols={{{name!r}: ...}}")
    return [value or 0 for value in values]
