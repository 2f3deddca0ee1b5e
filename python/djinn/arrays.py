# SPDX-License-Identifier: Apache-2.0
"""numpy arrays at the border: dtypes by PyTorch's names, and the two that numpy does not have.

bfloat16 travels as uint16 and the 8-bit floats as uint8: the bits are kept, and nothing is cast
behind anybody's back. `bfloat16_to_float32` and `float32_to_bfloat16` cross over.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_CARRIERS: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.uint16),
    "float8_e4m3fn": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
}


# Besides those that are carried: what djinnd computes with, by numpy's names, which are PyTorch's.
_PLAIN = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


def carrier(dtype: str) -> np.dtype[Any]:
    """The numpy dtype whose items have the bits of a dtype of ours."""
    if dtype in _CARRIERS:
        return _CARRIERS[dtype]
    if dtype not in _PLAIN:
        raise TypeError(f"djinnd has no dtype {dtype!r}")
    return np.dtype(dtype)


def dtype_name(array: Array) -> str:
    """The name of an array's own dtype; uint16 is uint16, for nothing tells a bfloat16 apart."""
    return array.dtype.name


def checked(array: Any, dtype: str, what: str) -> Array:
    """A contiguous array of that dtype, from an array that has it."""
    given = np.asarray(array)
    if given.dtype != carrier(dtype):
        raise TypeError(f"{what} must be {dtype}, carried by {carrier(dtype)}; got {given.dtype}")
    return np.require(given, requirements="C")


def from_bytes(data: bytearray, dtype: str, sizes: Sequence[int]) -> Array:
    """An array that owns `data`."""
    return np.frombuffer(data, carrier(dtype)).reshape(sizes)


def bfloat16_to_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The values of bfloat16 bits; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even, as PyTorch rounds; NaN becomes 0x7fc0."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
