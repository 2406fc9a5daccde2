"""Header and rows of a table that nccl-tests prints, and the operations it can be of."""

from __future__ import annotations

from dataclasses import dataclass

from instances.errors import InputError
from optimizer.calibration import fields

#: Bytes of one number of the types that nccl-tests names.
_TYPE_BYTES = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "int", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
_NO_REDUCTION = "none"
#: What a table shows of an operation: (reduces, has a root, counts a rank's part only).
_TRAITS = {
    "all_reduce": (True, False, False),
    "reduce": (True, True, False),
    "reduce_scatter": (True, False, True),
    "broadcast": (False, True, False),
    "all_gather": (False, False, True),
    "all_to_all": (False, False, True),
    "send": (False, False, False),
}


@dataclass(frozen=True, slots=True)
class NcclRow:
    """One row: what was sent, and texts of the out-of-place or in-place columns asked for.

    `is_wrong` tells whether results were wrong in any group of columns; None where nobody looked.
    """

    message_bytes: int
    count: int
    dtype: str
    redop: str
    has_root: bool
    time: str
    bandwidths: dict[str, str]
    is_wrong: bool | None
    is_wrong_elsewhere: bool
    place: str


class NcclHeader:
    """Names of the columns: what is sent, then a group per time, then perhaps a timestamp."""

    def __init__(self, line: str, place: str) -> None:
        names = line.lstrip("# ").split() if line.startswith("#") else line.split()
        self.is_stamped = names[-1] == "timestamp"
        if self.is_stamped:
            names.pop()
        if "cputime" in names:
            rule = "cputime is what the CPU took to start the operation; measure without -C"
            raise InputError(place, "cputime", rule)
        starts = [i for i, name in enumerate(names) if name == "time"]
        if names[:3] != ["size", "count", "type"] or not starts:
            rule = "a header names size, count, type and time; this one does not"
            raise InputError(place, "header", rule, " ".join(names))
        self.names, self.sent = names, names[: starts[0]]
        ends = [*starts[1:], len(names)]
        self.groups = [
            dict(zip(names[a:b], range(a, b), strict=True))
            for a, b in zip(starts, ends, strict=True)
        ]
        for group in self.groups:
            if not {"algbw", "busbw"} <= set(group):
                raise InputError(place, "header", "every time needs its algbw and busbw beside it")

    def row(self, line: str, is_in_place: bool, place: str) -> NcclRow:
        """Read a row; raises InputError."""
        tokens = self._tokens(line, place)
        sent = dict(zip(self.sent, tokens, strict=False))
        if is_in_place and len(self.groups) < 2:
            raise InputError(place, "--in-place", "the table has no in-place columns; leave it out")
        chosen = self.groups[1 if is_in_place else 0]
        verdicts = [_is_wrong(group, tokens, place) for group in self.groups]
        count = fields.whole(sent["count"], place, "count", 0)
        # an AllGather of fewer bytes than ranks is rounded down to nothing, and says so
        least = 0 if count == 0 else 1
        root = sent.get("root", "-1")
        return NcclRow(
            fields.whole(sent["size"], place, "size", least),
            count,
            sent["type"],
            sent.get("redop", _NO_REDUCTION),
            fields.whole(root, place, "root", -1) >= 0,
            tokens[chosen["time"]],
            {name: tokens[chosen[name]] for name in ("algbw", "busbw")},
            verdicts[self.groups.index(chosen)],
            any(verdicts),
            place,
        )

    def _tokens(self, line: str, place: str) -> list[str]:
        tokens = line.split()
        if self.is_stamped:
            tokens = tokens[: len(self.names)]
        if len(tokens) == len(self.names) - 1 and "redop" in self.sent:
            at = self.sent.index("redop")
            if not tokens[at].isalpha():  # a number: older ones leave the reduction blank
                tokens.insert(at, _NO_REDUCTION)
        if len(tokens) != len(self.names):
            rule = (
                f"a row of {len(tokens)} columns under a header of {len(self.names)}: the table "
                "ends early, or something else was printed into it"
            )
            raise InputError(place, "row", rule, line)
        return tokens


def _is_wrong(group: dict[str, int], tokens: list[str], place: str) -> bool | None:
    """Whether a row says that results were wrong; None where it does not tell.

    The older column "error" holds the largest rounding error, which is no verdict.
    """
    if "#wrong" not in group or tokens[group["#wrong"]] == "N/A":
        return None
    return fields.printed(tokens[group["#wrong"]], place, "#wrong")[0] > 0


def possible_operations(rows: list[NcclRow], num_ranks: int) -> list[str]:
    """Return the operations whose tables look like this one."""
    found = []
    for name, (reduces, has_root, counts_part) in _TRAITS.items():
        parts = num_ranks if counts_part else 1
        if all(
            (row.redop != _NO_REDUCTION) == reduces
            and row.has_root == has_root
            and _TYPE_BYTES.get(row.dtype, 0) * row.count * parts == row.message_bytes
            for row in rows
        ):
            found.append(name)
    return found
