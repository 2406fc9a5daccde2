"""The one error a user's input can cause."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input, said in one line: where it stands, its value, the rule, and the fix."""

    def __init__(self, source: str, field: str, rule: str, value: object = None) -> None:
        shown = "" if value is None else f" = {shorten(value)}"
        place = f"{source}: {field}{shown}" if field else f"{source}{shown}"
        super().__init__(" ".join(f"{place}: {rule}".split()))
        self.source, self.field, self.rule, self.value = source, field, rule, value


def shorten(value: object, limit: int = 60) -> str:
    """Return `value` as it would be typed, cut to `limit` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to print"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(name: str, limit: int = 60) -> str:
    """Return a field name as one short word that a terminal shows as it is."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in name[:limit])
    return shown if len(name) <= limit else f"{shown}…"
