"""Solves one block of a sweep: points that differ in the deadline alone, or a single point.

Every row depends on its block alone, so it is the same whatever ran before, beside or elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from instances.errors import InputError
from instances.quantity import human_seconds
from optimizer.errors import PlannerError
from optimizer.evaluation import OBJECTIVE_UNITS
from optimizer.frontiers.deadline import DeadlineLine, Step, exact_steps
from optimizer.plan_document import as_text
from optimizer.sweeps.rows import FrontierPiece, SweepPoint, SweptValue, outcome_fields
from optimizer.variants.fields import Path, changed_instance
from optimizer.variants.solver import VariantSolver

#: Name of the column that `--deadline` sweeps.
DEADLINE = "deadline_s"


@dataclass(frozen=True, slots=True)
class Block:
    """Points solved together: the changed fields they share, and their deadlines, if swept.

    No `deadlines` is a single point. `cohorts` are those whose deadline moves. `exact` asks for the
    pieces between `from_s` and `to_s` instead.
    """

    values: Mapping[Path, int | str | None]
    swept: Mapping[str, SweptValue]
    deadlines: tuple[Fraction, ...] = ()
    exact: bool = False
    from_s: Fraction | None = None
    to_s: Fraction | None = None
    cohorts: tuple[int, ...] | None = None


def solve_block(
    solver: VariantSolver, document: Any, block: Block, source: str
) -> list[SweepPoint]:
    """Return the rows of a block in order; what cannot be solved becomes rows that say so.

    Raises KeyboardInterrupt when interrupted.
    """
    try:
        instance = changed_instance(document, block.values, source)
        if block.exact:
            return list(_pieces(DeadlineLine(solver, instance, block.cohorts), block))
        if block.deadlines:
            return _deadlines(DeadlineLine(solver, instance, block.cohorts), block)
        return [SweepPoint(swept=dict(block.swept), **outcome_fields(solver.solve(instance)))]
    except (InputError, PlannerError) as error:
        return _failed(document, block, str(error))


def _failed(document: Any, block: Block, reason: str) -> list[SweepPoint]:
    """Return a row for every point of a block that failed as a whole."""
    minimise, maximise = (document["objective"][name] for name in ("minimise", "maximise"))
    fields = _failed_fields(document["name"], maximise or minimise[0], reason)
    if block.exact:
        return [FrontierPiece(swept=dict(block.swept), **fields)]
    sweeps = [{**block.swept, DEADLINE: float(d)} for d in block.deadlines] or [dict(block.swept)]
    return [SweepPoint(swept=swept, **fields) for swept in sweeps]


def _failed_fields(instance: str, objective: str, reason: str) -> dict[str, Any]:
    return {
        "instance": instance,
        "termination": "failed",
        "objective": objective,
        "unit": OBJECTIVE_UNITS[objective],
        "reason": " ".join(reason.split()),
    }


def _deadlines(line: DeadlineLine, block: Block) -> list[SweepPoint]:
    """Walk down the block's deadlines; each solve serves every point down to its plan's limit."""
    rows: dict[Fraction, SweepPoint] = {}
    for deadline in block.deadlines:
        if deadline <= line.above_s:
            reason = f"deadline_s: must be later than release_s ({float(line.above_s):g} s)"
            fields = _failed_fields(line.instance.name, line.instance.objective.names[0], reason)
            rows[deadline] = SweepPoint(swept=_swept(block, deadline), **fields)
    left = sorted({d for d in block.deadlines if d not in rows})  # ascending, not served yet
    above: Fraction | None = None
    highest = max(left, default=None)
    walked = line.walk(highest, lambda at: max((d for d in left if d < at), default=None))
    while left:
        step = next(walked)
        served = [d for d in left if step.from_s is None or d >= step.from_s]
        for deadline in served:
            rows[deadline] = _row(line, block, step, deadline, served[-1], above)
        left = left[: len(left) - len(served)]
        above = step.from_s
    return [rows[deadline] for deadline in block.deadlines]


def _swept(block: Block, deadline: Fraction) -> dict[str, SweptValue]:
    return {**block.swept, DEADLINE: float(deadline)}


def _row(
    line: DeadlineLine,
    block: Block,
    step: Step,
    deadline: Fraction,
    solved_at: Fraction,
    above: Fraction | None,
) -> SweepPoint:
    """Return the row of a deadline that a step of the walk serves; it was solved at `solved_at`."""
    solved = step.solved
    judged = None if solved.evaluation is None else line.judged_at(solved.evaluation, deadline)
    fields = outcome_fields(solved, judged)
    if solved.is_infeasible and above is not None:
        fields["reason"] = _too_short(above, deadline)
    if deadline != solved_at and solved.is_proven:
        kept = "a longer deadline has none" if solved.plan is None else "the same plan"
        fields["proof"] += f"; {kept} at {float(solved_at):.9g} s"
    return SweepPoint(swept=_swept(block, deadline), **fields)


def _too_short(shortest: Fraction, deadline: Fraction | None) -> str:
    text = f"every plan needs a deadline of at least {human_seconds(shortest)}"
    if deadline is not None:
        text += f": {human_seconds(shortest - deadline)} more"
    return text


def _pieces(line: DeadlineLine, block: Block) -> list[FrontierPiece]:
    """Return the pieces of the exact frontier, from the shortest deadline to the longest."""
    steps = exact_steps(line, block.from_s, block.to_s)
    rows = []
    begin = block.from_s or Fraction(0)
    for i, step in enumerate(steps):
        starts = [begin, line.above_s] + ([] if step.from_s is None else [step.from_s])
        from_s = max(starts)
        until = block.to_s if i + 1 == len(steps) else steps[i + 1].from_s
        judged = None
        if step.solved.evaluation is not None:
            judged = line.judged_at(step.solved.evaluation, from_s)
        fields = outcome_fields(step.solved, judged)
        if step.solved.is_infeasible and until is not None:
            fields["reason"] = _too_short(until, None) if i + 1 < len(steps) else fields["reason"]
        rows.append(
            FrontierPiece(
                swept=dict(block.swept),
                from_s=float(from_s),
                from_exact=str(from_s),
                to_s=None if until is None else float(until),
                to_exact=as_text(until),
                **fields,
            )
        )
    return rows
