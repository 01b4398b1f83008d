"""Amounts as people write them: "2GB" of memory, 2e9 edges; and bytes as people read them."""

from __future__ import annotations

import re

from unifews.errors import InputError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


def as_bytes(value: str | int | float, name: str) -> int:
    """Bytes of "500MB", "2GB", "1.5GiB" or a plain number.

    >>> as_bytes("2GB", "memory"), as_bytes("1GiB", "memory"), as_bytes(5e8, "memory")
    (2000000000, 1073741824, 500000000)
    """
    found = _AMOUNT.fullmatch(str(value)) if not isinstance(value, bool) else None
    number = int(float(found[1]) * _UNITS[(found[2] or "").lower()]) if found else 0
    if number < 1:
        raise InputError(f"`{name}` is an amount such as 500MB, 2GB or 1.5GiB; got {value!r}.")
    return number


def as_count(value: str | int | float, name: str) -> int:
    """A whole number, which may be written as 2e9 or 2_000_000.

    >>> as_count("2e9", "edges"), as_count("1_000", "edges")
    (2000000000, 1000)
    """
    try:
        return int(value)
    except ValueError:
        pass
    try:
        number = float(value)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise InputError(f"`{name}` is a whole number such as 2000000 or 2e6; got {value!r}.")


def in_words(size: float) -> str:
    """
    >>> in_words(999), in_words(1_500_000), in_words(26e9)
    ('999 bytes', '1.5 MB', '26 GB')
    """
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 999.5 or unit == "TB":
            break
    return f"{size:.0f} {unit}" if size >= 9.95 else f"{size:.1f} {unit}"
