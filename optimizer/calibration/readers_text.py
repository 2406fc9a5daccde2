"""Reads the text that nccl-tests prints, one test or several, with what a log mixes into it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from instances.errors import InputError
from optimizer.calibration import fields
from optimizer.calibration.nccl_rows import NcclHeader, NcclRow, possible_operations
from optimizer.calibration.points import (
    MeasuredPoint,
    Reading,
    ReadOptions,
    operation_named,
)

#: What mpirun writes before every line when it tags output.
_TAG = re.compile(r"\[\d+(,\d+)?\](<std(out|err)>)?:?\s*")
_RANK = re.compile(
    r"#\s*Rank\s+(?P<rank>\d+)\s+(Group\s+(?P<group>\d+)\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+)\s+"
    r"device\s+\d+\s+\[[^]]*\]\s*(?P<device>.*)"
)
_STEPS = re.compile(r"minBytes\s+\d+\s+maxBytes\s+(\d+)\s+step:\s+(\d+)\((factor|bytes)\)")
_REDUCED = re.compile(r"Reducing maxBytes to (\d+)")
_STARTING = re.compile(r"Collective test starting:\s+(\S+)")
_COMMAND = re.compile(r"\b(\w+_perf)\s+-")
_LIBRARY = re.compile(r"nccl-library=(\d+)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_LOG = re.compile(r"\bNCCL (INFO|WARN|TRACE|version)\b")
_FAILED = re.compile(r"#\s*Out of bounds values\s*:\s*\d+\s+FAILED")
#: Sizes of operations on parts are rounded down to so many bytes of each rank.
_ALIGNMENT_BYTES = 16

ROUNDED_AWAY = "size rounded down to nothing (0 B)"
WRONG_RESULTS = "wrong results (#wrong above 0)"
_BUS_AS_ALGBW = (
    "algbw holds the bus bandwidth, as nccl-tests printed it until June 2020; only times are used"
)
_UNCHECKED = "results were not checked (#wrong is N/A)"


@dataclass(slots=True)
class _Test:
    """What has been seen of one run of a program, up to the end of its table."""

    program: str | None = None
    library: str = "NCCL"
    ranks: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)
    max_bytes: int | None = None
    step: tuple[int, str] = (0, "bytes")
    header: NcclHeader | None = None
    header_place: str = ""
    rows: list[NcclRow] = field(default_factory=list)
    failed_place: str | None = None


@dataclass(frozen=True, slots=True)
class _Arrangement:
    """Ranks of one communicator, the servers they lie on, and their cards."""

    ranks: int
    servers: int | None
    system: str


def read_nccl_tests(text: str, source: str, options: ReadOptions) -> Reading:
    """Read what nccl-tests printed; raises InputError with file, line and rule."""
    reader = _TextReader(source, options)
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(line, f"{source}:{number}")
    return reader.finish()


class _TextReader:
    """Goes through lines, and turns every finished test into points."""

    def __init__(self, source: str, options: ReadOptions) -> None:
        self.source, self.options = source, options
        self.test = _Test()
        self.points: list[MeasuredPoint] = []
        self.dropped: Counter[str] = Counter()
        self.notes: dict[str, None] = {}

    def take(self, raw: str, place: str) -> None:
        """Take one line in."""
        line = raw.strip()
        tag = _TAG.match(line)
        line = line[tag.end() :] if tag else line
        version = _VERSION.search(line)
        if version:
            self.test.library = f"NCCL {version[1]}"
        if line.startswith("#"):
            self._comment(line, place)
        elif self.test.header is None:
            command = _COMMAND.search(line)
            self.test.program = command[1] if command else self.test.program
        elif line and not _LOG.search(line):
            self.test.rows.append(self.test.header.row(line, self.options.is_in_place, place))

    def finish(self) -> Reading:
        """Return what was read; raises InputError for a table without an end, or no table."""
        self._refuse_open()
        if not self.points and not self.dropped:
            raise InputError(self.source, "", "the table ends early: it has no rows")
        return Reading(tuple(self.points), (), tuple(self.dropped.items()), tuple(self.notes))

    def _refuse_open(self) -> None:
        if self.test.header is not None:
            rule = 'the table ends early: no line "# Avg bus bandwidth" closes it'
            raise InputError(self.test.header_place, "", rule)

    def _comment(self, line: str, place: str) -> None:
        test = self.test
        if starting := _STARTING.search(line):
            self._refuse_open()
            test.program = starting[1]
        elif library := _LIBRARY.search(line):
            test.library = f"NCCL {_version_text(int(library[1]))}"
        elif steps := _STEPS.search(line):
            self._refuse_open()
            test.max_bytes, test.step = int(steps[1]), (int(steps[2]), steps[3])
        elif reduced := _REDUCED.search(line):
            test.max_bytes = int(reduced[1])
        elif re.match(r"#\s*Rank\s+\d", line):
            self._rank(line, place)
        elif re.match(r"#\s*size\s+count\s", line):
            self._refuse_open()
            test.header, test.header_place = NcclHeader(line, place), place
        elif _FAILED.match(line):
            test.failed_place = place
        elif re.match(r"#\s*Avg bus bandwidth", line) and test.header is not None:
            self._close(place)
            self.test = _Test(library=test.library)

    def _rank(self, line: str, place: str) -> None:
        found = _RANK.match(line)
        if found is None:
            raise InputError(place, "Rank", "must name its process, host and device", line)
        key = (found["group"] or "0", int(found["rank"]))
        if key in self.test.ranks:
            rule = (
                "this rank appears twice: without MPI support nccl-tests runs once in every "
                "process, and the runs print over each other"
            )
            raise InputError(place, "Rank", rule, key[1])
        self.test.ranks[key] = (found["host"], found["device"].strip())

    def _close(self, place: str) -> None:
        """Turn the finished test into points."""
        test = self.test
        if not test.rows:
            raise InputError(place, "", "the table ends early: it has no rows")
        rows = [row for row in test.rows if row.message_bytes]
        where = self._arrangement(test.header_place)
        _check_last_size(test, where.ranks, place)
        if test.failed_place and not any(row.is_wrong_elsewhere for row in test.rows):
            rule = "results were wrong, and no row says of which size"
            raise InputError(test.failed_place, "Out of bounds values", rule)
        if len(rows) < len(test.rows):
            self.dropped[ROUNDED_AWAY] += len(test.rows) - len(rows)
        if rows:
            operation = self._operation(rows, where.ranks)
            for row in rows:
                self._point(row, operation, where)

    def _arrangement(self, place: str) -> _Arrangement:
        """Count ranks and hosts of a communicator; several groups at once must be alike."""
        ranks, options = self.test.ranks, self.options
        if not ranks:
            if options.ranks is None:
                rule = 'no line "# Rank" says how many ranks took part; say it with --ranks'
                raise InputError(place, "", rule)
            return _Arrangement(options.ranks, options.servers, "unstated")
        groups: dict[str, list[str]] = {}
        for (group, _), (host, _) in ranks.items():
            groups.setdefault(group, []).append(host)
        shapes = {(len(hosts), len(set(hosts))) for hosts in groups.values()}
        if len(shapes) > 1:
            raise InputError(place, "Rank", f"{len(groups)} groups of ranks are not alike")
        ((num_ranks, num_servers),) = shapes
        if num_ranks < 2:
            raise InputError(place, "Rank", "one rank alone communicates with nobody")
        devices = sorted({device for _, device in ranks.values() if device})
        return _Arrangement(num_ranks, num_servers, " + ".join(devices) or "unstated")

    def _operation(self, rows: list[NcclRow], num_ranks: int) -> str:
        """Return the operation by the program's name, or by what only its tables look like."""
        place = self.test.header_place
        if self.test.program is not None:
            return operation_named(self.test.program, place)
        possible = possible_operations(rows, num_ranks)
        if len(possible) == 1:
            return possible[0]
        if self.options.operation in possible or (self.options.operation and not possible):
            return self.options.operation
        names = " or ".join(possible) or "any operation"
        rule = f"no line names the program, and the table may be of {names}; say --operation"
        raise InputError(place, "", rule)

    def _point(self, row: NcclRow, operation: str, where: _Arrangement) -> None:
        number, half = fields.printed(row.time, row.place, "time")
        time_s = fields.time(row.time, "us", row.place, "time")
        micro = Fraction(1, 10**6)
        bandwidths = fields.Bandwidths(operation, where.ranks)
        around = ((number - half) * micro, (number + half) * micro)
        if bandwidths.check(row.message_bytes, around, row.bandwidths, row.place):
            self.notes[_BUS_AS_ALGBW] = None
        if row.is_wrong:
            self.dropped[WRONG_RESULTS] += 1
            return
        if row.is_wrong is None:
            self.notes[_UNCHECKED] = None
        mode = "in-place" if self.options.is_in_place else "out-of-place"
        if row.redop not in ("none", "sum"):
            mode += f", {row.redop}"
        point = MeasuredPoint(
            operation, where.ranks, where.servers, where.system, self.test.library, row.dtype,
            mode, row.message_bytes, time_s, row.place,
        )  # fmt: skip
        self.points.append(point)


def _version_text(code: int) -> str:
    """Return "2.27.3" for 22703 and "2.8.4" for 2804: the number was longer from 2.9 on."""
    major = 10_000 if code >= 10_000 else 1000
    return f"{code // major}.{code % major // 100}.{code % 100}"


def _check_last_size(test: _Test, num_ranks: int, place: str) -> None:
    """Raise InputError where a step more would still have been below the largest size asked."""
    if test.max_bytes is None or not test.rows[-1].message_bytes:
        return
    last, (step, kind) = test.rows[-1].message_bytes, test.step
    slack = _ALIGNMENT_BYTES * num_ranks
    following = last * step if kind == "factor" else last + step + slack
    if last < test.max_bytes and following <= test.max_bytes:
        rule = f"the table ends early: at {last} B, though {test.max_bytes} B were asked for"
        raise InputError(place, "", rule)
