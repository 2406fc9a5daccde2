"""Groups of measurements as what an instance file can hold: tables, and a fabric around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from instances.errors import InputError
from instances.hardware import FabricSpec, LookupPolicy, MeasuredCollective
from instances.io import validate
from optimizer.calibration.fits import Fit, NotFitted, fit
from optimizer.calibration.groups import Group, middle_s
from optimizer.calibration.quantities import rate_text, time_text

_MAX_NAME_CHARS = 120
#: Groups that an error lists before it says how many more there are.
_MAX_LISTED = 12
_POLICIES: dict[LookupPolicy, str] = {
    "next_larger_size": "a size between two rows takes the time of the next larger row",
    "linear": "a size between two rows takes a time on the line between them over bytes",
    "log_linear": "a size between two rows takes a time on the line between them over log2(bytes)",
}


@dataclass(frozen=True, slots=True)
class Wording:
    """How tables and fabrics are named, looked up and vouched for.

    `citation` is the publication that the measurements come from; None: only the file is named.
    """

    policy: LookupPolicy = "next_larger_size"
    name: str | None = None
    citation: str | None = None


_PLAIN = Wording()


def table_entry(group: Group, wording: Wording = _PLAIN) -> dict[str, Any]:
    """Return a group as a measured table, as `MeasuredCollective` reads it.

    A size that was measured several times takes the middle between the fastest and the slowest
    repeat, with half their distance as its spread: at the ends of the spread stand measured times.
    Raises InputError where the servers are not known, or the ranks do not spread evenly over them.
    """
    key = group.key
    if key.servers is None:
        rule = f"say on how many servers the {key.ranks} ranks of {key.operation} lie"
        raise InputError("measurements", "--servers", rule)
    rows = []
    for message_bytes, times in group.by_size.items():
        row = {"message_bytes": message_bytes, "time_s": time_text(middle_s(times))}
        if times[0] < times[-1]:
            row["spread_s"] = time_text((times[-1] - times[0]) / 2)
        rows.append(row)
    origin = _origin(group, wording)
    entry: dict[str, Any] = {
        "name": _short(str(key)),
        "operation": key.operation,
        "ranks": key.ranks,
        "servers": key.servers,
        "variant": _short(", ".join(t for t in (key.library, key.mode) if t != "unstated")) or None,
        "policy": wording.policy,
        "rows": rows,
        "sources": {
            "operation": origin,
            "ranks": origin,
            "servers": origin,
            "policy": _POLICIES[wording.policy],
            "rows": f"{origin}; {len(group.points)} measured times of {len(rows)} sizes",
        },
    }
    validate(MeasuredCollective, entry, entry["name"])
    return entry


def fabric_entry(
    groups: Sequence[Group], tolerance: Fraction, wording: Wording = _PLAIN
) -> dict[str, Any]:
    """Return a fabric fitted to one AllReduce, with the tables measured along with it.

    The AllReduce must be the only one among `groups`; without any, the only group there is. Tables
    are those of its system, library, type and mode.

    Raises
    ------
    InputError
        Where several groups could be meant (it lists them), none can be fitted, or servers are not
        known.
    """
    chosen = choose(groups)
    try:
        found = fit(chosen, tolerance)
    except NotFitted as error:
        raise InputError("measurements", str(chosen.key), f"not fitted: {error}") from None
    alike = [group for group in groups if _kind(group) == _kind(chosen)]
    default = _short(f"{chosen.key.system}, {chosen.key.library} (measured)")
    how = f"{_origin(chosen, wording)}: {_how(found)}"
    entry = {
        "name": wording.name or default,
        "alpha_s": time_text(found.alpha_s),
        "bandwidth_bytes_per_s": rate_text(found.bandwidth_bytes_per_s),
        "measured": [table_entry(group, wording) for group in alike],
        "sources": {"alpha_s": how, "bandwidth_bytes_per_s": how},
    }
    validate(FabricSpec, entry, "fabric")
    return entry


def choose(groups: Sequence[Group]) -> Group:
    """Return the only AllReduce, or else the only group; raises InputError with a list."""
    reduces = [group for group in groups if group.key.operation == "all_reduce"]
    candidates = reduces or list(groups)
    if not candidates:
        raise InputError("measurements", "", "no collective was read, so no fabric can be fitted")
    if len(candidates) == 1:
        return candidates[0]
    listed = [str(group.key) for group in candidates[:_MAX_LISTED]]
    if len(candidates) > len(listed):
        listed.append(f"{len(candidates) - len(listed)} more")
    rule = (
        f"a fabric is fitted to one group of measurements, and there are {len(candidates)}: "
        f"{'; '.join(listed)}. Choose with --operation, --ranks, --servers, --system, --library, "
        "--dtype or --mode"
    )
    raise InputError("measurements", "", rule)


def _kind(group: Group) -> tuple[str, str, str, str]:
    return (group.key.system, group.key.library, group.key.dtype, group.key.mode)


def _origin(group: Group, wording: Wording) -> str:
    files = dict.fromkeys(PurePath(p.what.rpartition(":")[0]).name for p in group.points)
    cited = [] if wording.citation is None else [wording.citation]
    return ", ".join([*cited, f"file {' and '.join(files)}", str(group.key)])


def _how(found: Fit) -> str:
    """Say how a fit was made and where it holds."""
    share = f"{float(found.tolerance):.4g}"
    where = f"no size is within {share} of the measured time"
    if found.holds is not None:
        sizes = f"{found.holds.from_bytes} B to {found.holds.to_bytes} B"
        where = f"errors are at most {share} from {sizes}"
    line = f"T = {found.rounds}·alpha + {found.factor}·M/B"
    return f"least squares of relative errors of {line}; {where}"


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NAME_CHARS else text[: _MAX_NAME_CHARS - 1] + "…"
