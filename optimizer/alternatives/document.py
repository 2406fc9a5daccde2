"""The document of near-optimal plans."""

from __future__ import annotations

import json
from typing import Any, Literal

from optimizer.frame import to_dataframe
from optimizer.result import Document, PlanDocument


class AlternativeDocument(Document):
    """One deployment and the best it can do.

    `over` is how much worse than the best, as a share of it. `low` and `high` are the value with
    every measured time at the lower and upper end of its spread; `inside_spread` marks a plan that
    the measurements cannot tell from the best one.
    """

    sentence: str
    value: float
    value_exact: str
    over: float
    low: float | None
    high: float | None
    inside_spread: bool
    proof: str
    plan: PlanDocument


class AlternativesDocument(Document):
    """Every deployment within a margin of the optimum, best first.

    Two plans are the same deployment when they have equally many serving instances of each kind;
    each is shown with its best dispatch. `is_complete` says that no other deployment is within the
    margin: with all of these excluded, two methods find nothing.
    """

    kind: Literal["alternatives"] = "alternatives"
    schema_version: Literal[1] = 1
    instance: str
    instance_sha256: str
    objective: str
    unit: str
    within: float
    termination: Literal["optimal", "feasible", "infeasible", "no_solution_found"]
    is_complete: bool
    reason: str
    alternatives: list[AlternativeDocument]

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def to_dataframe(self) -> Any:
        """Return one row per deployment; raises ImportError where pandas is missing."""
        rows = [item.model_dump(mode="json", exclude={"plan"}) for item in self.alternatives]
        return to_dataframe(rows)
