"""Text from packages, made safe to print: it may hold terminal commands or line ends."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with everything that is no ordinary character escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
