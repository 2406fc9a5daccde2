"""Reads CSV files of DeepEP's dispatch and combine, the two All-to-All of an expert layer."""

from __future__ import annotations

from fractions import Fraction

from instances.errors import InputError
from optimizer.calibration import fields
from optimizer.calibration.points import MeasuredPoint, Reading, ReadOptions
from optimizer.calibration.readers_csv import UNSTATED, rows_of

#: Bytes of one number: dispatch sends FP8 (its scales are not counted), combine BF16.
_NUMBER_BYTES = {"dispatch": 1, "combine": 2}
_DTYPES = {"dispatch": "fp8", "combine": "bfloat16"}
_COUNTS = ("node_num", "hidden", "num_token", "topk", "num_experts")
#: Most bytes that scales and headers add to a dispatched vector, as a share of it.
_MOST_EXTRA = Fraction(1, 5)
_HEADER_BYTES = 64

NOTE = (
    "bytes of dispatch and combine are tokens × top-k × hidden of one card, times 1 for FP8 "
    "dispatch (scales not counted) and 2 for combine, what stays on the card included"
)


def is_deepep(columns: tuple[str, ...]) -> bool:
    """Whether the columns are those of a table of dispatch and combine."""
    return {*_COUNTS, "dispatch_avg_us", "combine_avg_us"} <= set(columns)


def read_deepep(text: str, source: str, options: ReadOptions) -> Reading:
    """Read a table of dispatch and combine: two points a row, both `all_to_all`.

    Ranks are servers times `options.cards_per_server`, which such tables do not say. Raises
    InputError with file, line and rule.
    """
    points: list[MeasuredPoint] = []
    for row, place in rows_of(text, source):
        for direction in _NUMBER_BYTES:
            points.append(_point(row, direction, options, place))
    return Reading(tuple(points), notes=(NOTE,))


def _point(row: dict[str, str], direction: str, options: ReadOptions, place: str) -> MeasuredPoint:
    counts = {name: fields.whole(row[name], place, name) for name in _COUNTS}
    servers = counts["node_num"]
    if options.cards_per_server is None:
        rule = "the table counts servers; say how many ranks each has with --cards-per-server"
        raise InputError(place, "node_num", rule, servers)
    ranks = servers * options.cards_per_server
    if ranks < 2:
        raise InputError(place, "node_num", "one rank alone communicates with nobody", ranks)
    vectors = counts["num_token"] * counts["topk"]
    message_bytes = vectors * counts["hidden"] * _NUMBER_BYTES[direction]
    column = f"{direction}_avg_us"
    time_s = fields.time(row[column], "us", place, column)
    _check_bandwidth(row, direction, message_bytes, vectors * _HEADER_BYTES, time_s, place)
    mode = f"{direction}, hidden {counts['hidden']}, top-{counts['topk']} of "
    return MeasuredPoint(
        "all_to_all", ranks, servers, row.get("system") or UNSTATED,
        f"DeepEP, measured with {row['version']}" if row.get("version") else "DeepEP",
        _DTYPES[direction], f"{mode}{counts['num_experts']} experts", message_bytes, time_s, place,
    )  # fmt: skip


def _check_bandwidth(
    row: dict[str, str],
    direction: str,
    message_bytes: int,
    header_bytes: int,
    time_s: Fraction,
    place: str,
) -> None:
    """Raise InputError where a bandwidth beside the time means other bytes than were counted.

    That of dispatch may count scales and headers, too.
    """
    column = f"{direction}_gbps"
    if column not in row:
        return
    number, _ = fields.printed(row[column], place, column)
    counted = number * fields.GIGA * time_s
    extra = message_bytes * _MOST_EXTRA + header_bytes if direction == "dispatch" else 0
    slack = Fraction(message_bytes, 100)
    if not message_bytes - slack <= counted <= message_bytes + extra + slack:
        rule = f"means {float(counted):.0f} B, but tokens × top-k × hidden gives {message_bytes} B"
        raise InputError(place, column, rule, row[column])
