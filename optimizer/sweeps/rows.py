"""Rows of a sweep: what each point, or each piece of an exact frontier, came to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from optimizer.bounds import relative_gap
from optimizer.evaluation import MAXIMISED, OBJECTIVE_UNITS, Evaluation
from optimizer.frame import to_dataframe
from optimizer.plan_document import as_float, as_text
from optimizer.result import Document
from optimizer.variants.solver import Solved

SweptValue = int | float | None


class SweepPoint(Document):
    """One row. Times in s, cost in card·s per session on time (6-13), energy in J.

    `swept` holds the swept fields by name, in the SI unit of their name. `objective` is the first
    objective of the instance and `value` its verified value; `*_exact` are fractions. `proof` names
    the solver and the second opinion, and what carried the result to this point. "failed" is a
    point that is no valid problem or that no solver could take; `reason` says why.
    """

    instance: str
    swept: dict[str, SweptValue]
    termination: Literal["optimal", "feasible", "infeasible", "no_solution_found", "failed"]
    plan: str | None = None
    objective: str
    unit: str
    value: float | None = None
    bound: float | None = None
    gap: float | None = None
    on_time: int | None = None
    sessions: int | None = None
    cost: float | None = None
    energy_j: float | None = None
    makespan_s: float | None = None
    reason: str = ""
    proof: str = ""
    value_exact: str | None = None
    bound_exact: str | None = None
    sweep: str = ""

    def record(self) -> dict[str, Any]:
        """Return the row flat: the swept fields are columns."""
        row = self.model_dump(mode="json")
        swept = row.pop("swept")
        return {"instance": row.pop("instance"), **swept, **row}


class FrontierPiece(SweepPoint):
    """One piece of an exact frontier: the optimum for deadlines in [from_s, to_s).

    `from_s` 0 is "however short", `to_s` null "however long". `on_time`, `cost` and what else
    depends on the deadline are those at `from_s`.
    """

    from_s: float = 0.0
    to_s: float | None = None
    from_exact: str = "0"
    to_exact: str | None = None

    def record(self) -> dict[str, Any]:
        """Return the row flat: swept fields first, then the piece."""
        row = super().record()
        ends = {name: row.pop(name) for name in ("from_s", "to_s", "from_exact", "to_exact")}
        names = list(self.swept)
        head = {name: row.pop(name) for name in ("instance", *names)}
        return {**head, **ends, **row}

    def contains(self, deadline_s: Fraction) -> bool:
        """Whether a deadline lies in the piece."""
        if deadline_s < Fraction(self.from_exact):
            return False
        return self.to_exact is None or deadline_s < Fraction(self.to_exact)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """All rows of a sweep, in their fixed order."""

    points: tuple[SweepPoint, ...]

    def to_json(self) -> str:
        """Return the rows as a JSON list, one row a line."""
        return as_json_list(point.record() for point in self.points)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame of the rows; raises ImportError where pandas is missing."""
        return to_dataframe([point.record() for point in self.points])


def as_json_list(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as a JSON list, one row a line, ending in a newline."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def outcome_fields(solved: Solved, evaluation: Evaluation | None = None) -> dict[str, Any]:
    """Return the fields of a row that a solve settles; `evaluation` judges its plan elsewhere."""
    instance = solved.instance
    name = instance.objective.names[0]
    judged = evaluation or solved.evaluation
    value = None if judged is None or solved.plan is None else judged.objective(name)
    bound = solved.bounds[0] if value is not None and solved.bounds else None
    gap = relative_gap(value, bound)
    if name in MAXIMISED:
        value, bound = (None if x is None else -x for x in (value, bound))
    fields: dict[str, Any] = {
        "instance": instance.name,
        "termination": solved.termination.value,
        "objective": name,
        "unit": OBJECTIVE_UNITS[name],
        "value": as_float(value),
        "bound": as_float(bound),
        "gap": as_float(gap),
        "reason": solved.reason,
        "proof": solved.proof,
        "value_exact": as_text(value),
        "bound_exact": as_text(bound),
        "sessions": instance.workload.num_sessions,
    }
    if judged is not None and solved.plan is not None:
        fields |= {
            "plan": solved.plan.sentence(instance.fleet.num_cards),
            "on_time": judged.num_on_time,
            "cost": as_float(judged.cost_per_on_time_session),
            "energy_j": as_float(judged.energy_j),
            "makespan_s": as_float(judged.makespan_s),
        }
    return fields
