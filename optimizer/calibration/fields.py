"""Numbers of a measurement file, each with the place to blame, and printed bandwidths checked."""

from __future__ import annotations

import re
from fractions import Fraction

from instances.errors import InputError
from instances.quantity import QuantityError, parse_quantity
from optimizer.calibration.points import ring_factor

#: A number as programs print it.
_PRINTED = re.compile(r"[+-]?[0-9]{1,30}(\.(?P<decimals>[0-9]{1,30}))?([eE](?P<tens>[+-]?[0-9]+))?")
_MAX_TENS = 30
#: What a program's own floats may be off by, as a share.
_FLOAT_ERROR = Fraction(1, 10**6)
GIGA = 10**9


def whole(text: str, place: str, field: str, least: int = 1) -> int:
    """Return a whole number of at least `least`; raises InputError."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        raise InputError(place, field, "must be a whole number of at most 18 digits", text)
    number = int(text)
    if number < least:
        raise InputError(place, field, f"must be at least {least}", text)
    return number


def size(text: str, place: str, field: str) -> int:
    """Return a positive number of bytes, with a unit or without; raises InputError."""
    try:
        exact = parse_quantity(text.strip(), "bytes")
    except QuantityError as error:
        raise InputError(place, field, str(error)) from None
    if exact == 0:
        raise InputError(place, field, "a message must have at least one byte", text)
    return exact.numerator


def printed(text: str, place: str, field: str) -> tuple[Fraction, Fraction]:
    """Return (number, half a unit of its last digit): it stands for what lies so far around it.

    Raises InputError.
    """
    match = _PRINTED.fullmatch(text.strip())
    if match is None or abs(int(match["tens"] or 0)) > _MAX_TENS:
        raise InputError(place, field, "must be a number", text)
    last = int(match["tens"] or 0) - len(match["decimals"] or "")
    return Fraction(text.strip()), Fraction(10) ** last / 2


def time(text: str, unit: str, place: str, field: str) -> Fraction:
    """Return a positive time, printed in `unit` ("us"), in seconds; raises InputError."""
    number, _ = printed(text, place, field)
    if number <= 0:
        raise InputError(place, field, "a time must be more than 0", text)
    return number * parse_quantity(f"1{unit}", "seconds")


class Bandwidths:
    """Checks printed bandwidths of one operation against size and time: never mixes them up.

    algbw is size/time. busbw is algbw times the operation's factor (`ring_factor`), what a link of
    a ring would carry (6.4.3).
    """

    def __init__(self, operation: str, num_ranks: int) -> None:
        self.operation, self.num_ranks = operation, num_ranks
        self.factor = ring_factor(operation, num_ranks)

    def check(
        self,
        message_bytes: int,
        time_range_s: tuple[Fraction, Fraction],
        texts: dict[str, str],
        place: str,
    ) -> bool:
        """Check the columns "algbw" and "busbw" of a row, GB/s, as far as `texts` holds them.

        `time_range_s` is what the printed time may stand for. Returns whether algbw holds the bus
        bandwidth as well, as nccl-tests printed an AllGather until June 2020. Raises InputError for
        any other mismatch.
        """
        matches: dict[str, dict[str, bool]] = {}
        for name, text in texts.items():
            number, half = printed(text, place, name)
            matches[name] = {
                kind: _is_near(number, half, message_bytes * factor, time_range_s)
                for kind, factor in (("algbw", Fraction(1)), ("busbw", self.factor))
            }
        if all(found[name] for name, found in matches.items()):
            return False
        if (
            "algbw" in matches
            and matches["algbw"]["busbw"]
            and matches.get("busbw", {}).get("busbw")
        ):
            return self._only_bus(texts, place)
        wrong = next(name for name, found in matches.items() if not found[name])
        raise InputError(place, wrong, self._rule(wrong, matches), texts[wrong])

    def _only_bus(self, texts: dict[str, str], place: str) -> bool:
        if self.factor < 1:
            return True
        rule = "holds the bus bandwidth, which is algbw times " + self._named()
        raise InputError(place, "algbw", rule, texts["algbw"])

    def _rule(self, wrong: str, matches: dict[str, dict[str, bool]]) -> str:
        other = "busbw" if wrong == "algbw" else "algbw"
        if matches[wrong][other]:
            is_swapped = matches.get(other, {}).get(wrong, False)
            rule = f"this is the {other}" + ("; algbw and busbw are swapped" if is_swapped else "")
            return f"{rule}: algbw is size/time, and busbw is algbw times {self._named()}"
        if wrong == "algbw":
            return "is not size/time; a column is shifted, or another unit was meant"
        return f"is not algbw times {self._named()}: another operation, or other ranks?"

    def _named(self) -> str:
        return f"{self.factor}, the factor of {self.operation} on {self.num_ranks} ranks"


def _is_near(
    number: Fraction, half: Fraction, moved_bytes: Fraction, time_range_s: tuple[Fraction, Fraction]
) -> bool:
    """Whether a printed GB/s may stand for `moved_bytes` in any time of the range."""
    shortest_s, longest_s = time_range_s
    slack = 1 + _FLOAT_ERROR
    least, most = (number - half) * GIGA / slack, (number + half) * GIGA * slack
    is_slow_enough = shortest_s <= 0 or moved_bytes / shortest_s >= least
    return is_slow_enough and moved_bytes / longest_s <= most
