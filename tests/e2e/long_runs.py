# SPDX-License-Identifier: Apache-2.0
"""Runs that take long, for tests that meet them on their way."""


def matmuls(count: int) -> str:
    """Of a float32 matrix x of 640 rows and columns; the result is y{count}."""
    lines = [f"%y{i + 1} = aten::matmul(%y{i}, %x)" for i in range(count)]
    header = 'srg 1 "long"\ninput %x : float32[640, 640]\n%y0 = aten::clone(%x)\n'
    return header + "\n".join([*lines, f"output %y{count}\n"])
