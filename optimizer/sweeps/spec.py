"""What a sweep asks: axes of values whose cross product are its points."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

from instances.errors import InputError
from instances.instance import Instance
from optimizer.options import SolveOptions
from optimizer.plan_document import as_text
from optimizer.sweeps.chain import DEADLINE, Block
from optimizer.sweeps.ranges import MAX_POINTS, read_interval, read_range
from optimizer.sweeps.rows import SweptValue
from optimizer.variants.fields import Number, Path, fields_at, parse_path, written

#: Deadlines solved together. Rows reach the file block by block; a block depends on nothing else.
BLOCK_SIZE = 100


@dataclass(frozen=True, slots=True)
class Axis:
    """One swept field: the paths it sets, and its values in order."""

    name: str
    paths: tuple[Path, ...]
    dimension: str
    values: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class SweepSpec:
    """A sweep of one instance: the cross product of its axes, the deadline varying fastest.

    With `exact` every point of the other axes has its exact frontier between `from_s` and `to_s`
    (None: however short, however long).
    """

    document: Any
    source: str
    axes: tuple[Axis, ...] = ()
    deadlines: tuple[Fraction, ...] = ()
    exact: bool = False
    from_s: Fraction | None = None
    to_s: Fraction | None = None
    cohorts: tuple[int, ...] | None = None

    @property
    def num_points(self) -> int:
        """Rows of the sweep; of an exact one, frontiers."""
        return math.prod(len(axis.values) for axis in self.axes) * max(1, len(self.deadlines))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the swept fields, in order."""
        names = [axis.name for axis in self.axes]
        return (*names, DEADLINE) if self.deadlines else tuple(names)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in the order of their rows."""
        runs: Sequence[tuple[Fraction, ...]] = [()]
        if self.deadlines:
            starts = range(0, len(self.deadlines), BLOCK_SIZE)
            runs = [self.deadlines[start : start + BLOCK_SIZE] for start in starts]
        for choice in product(*(axis.values for axis in self.axes)):
            values: dict[Path, int | str | None] = {}
            swept: dict[str, SweptValue] = {}
            for axis, value in zip(self.axes, choice, strict=True):
                swept[axis.name] = value if isinstance(value, int) else float(value)
                for path in axis.paths:
                    values[path] = written(value, axis.dimension)
            for run in runs:
                yield Block(values, swept, run, self.exact, self.from_s, self.to_s, self.cohorts)

    def identity(self, options: SolveOptions) -> str:
        """Return a hash of all that rows depend on; rows carry it, so that they can be resumed."""
        asked = {
            "instance": self.document,
            "axes": [
                [axis.name, [written(v, axis.dimension) for v in axis.values]] for axis in self.axes
            ],
            "deadlines": [str(d) for d in self.deadlines],
            "cohorts": self.cohorts,
            "exact": [self.exact, as_text(self.from_s), as_text(self.to_s)],
            "options": [options.solver, options.time_limit_s, options.threads, options.seed],
        }
        text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def sweep_spec(
    instance: Instance,
    *,
    deadline: object = None,
    fields: Mapping[str, object] | None = None,
    exact: bool = False,
    cohorts: Sequence[str] = (),
    source: str = "sweep",
) -> SweepSpec:
    """Return the sweep that ranges describe; raises InputError.

    Parameters
    ----------
    deadline : range of the deadline of every cohort that has one (all, where none has); with
        `exact` an interval or None.
    fields : ranges by path; a path with `[*]` sets every element.
    exact : ask for the exact step function of the optimum against the deadline.
    cohorts : names of the cohorts whose deadline moves, instead.
    source : what messages call the sweep.
    """
    if instance.decision != "deployment":
        raise InputError(source, "decision", "sweeps are of deployments", instance.decision)
    document = instance.model_dump(mode="json")
    axes = []
    for path, values in (fields or {}).items():
        places = fields_at(document, parse_path(path, source), source)
        dimension = places[0].dimension
        numbers = read_range(values, dimension, source, path)
        axes.append(Axis(path, tuple(p.path for p in places), dimension, numbers))
    moved = _cohorts(instance, cohorts, source)
    if exact:
        ends: tuple[Fraction | None, Fraction | None] = (None, None)
        if deadline is not None:
            ends = read_interval(str(deadline), "seconds", source, DEADLINE)
        spec = SweepSpec(document, source, tuple(axes), (), True, *ends, moved)
    else:
        found = () if deadline is None else read_range(deadline, "seconds", source, DEADLINE)
        deadlines = tuple(Fraction(value) for value in found)
        spec = SweepSpec(document, source, tuple(axes), deadlines, cohorts=moved)
        if not axes and not deadlines:
            rule = "sweeps nothing; give a deadline or fields to set, or ask for the exact frontier"
            raise InputError(source, "", rule)
    if spec.num_points > MAX_POINTS:
        raise InputError(source, "", f"has {spec.num_points} points; at most {MAX_POINTS} may be")
    return spec


def _cohorts(instance: Instance, names: Sequence[str], source: str) -> tuple[int, ...] | None:
    known = [cohort.name for cohort in instance.workload.cohorts]
    for name in names:
        if name not in known:
            rule = f"no cohort is named {name!r}; there are {', '.join(known)}"
            raise InputError(source, "cohorts", rule)
    return tuple(i for i, name in enumerate(known) if name in names) or None
