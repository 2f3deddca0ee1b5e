# SPDX-License-Identifier: Apache-2.0
"""Sizes as people read them."""

UNITS = ("KiB", "MiB", "GiB", "TiB")


def size_text(count: int) -> str:
    """IEC units, one decimal below 100, as djinnctl has them: "1023 B", "1.5 KiB", "100 KiB"."""
    if count < 1024:
        return f"{count} B"
    value, unit = count / 1024, 0
    while value >= 1023.5 and unit + 1 < len(UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {UNITS[unit]}" if value < 99.95 else f"{value:.0f} {UNITS[unit]}"


__all__ = ["size_text"]
