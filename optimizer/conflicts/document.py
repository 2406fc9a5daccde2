"""The document that says why nothing fits."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from optimizer.frame import to_dataframe
from optimizer.result import Document


class ConstraintDocument(Document):
    """One constraint of the instance that takes part in the conflict."""

    name: str
    description: str


class RelaxationDocument(Document):
    """The least change of one input alone that lets something fit.

    `value` is the input after the change. `exact` tells whether a smaller change is proven not to
    do; else it is known to within `width`. `plan` was solved again and verified; `objective_value`
    is its first objective. `label` names the input in words. Where several deadlines move together,
    `value` is the latest of them.
    """

    path: str
    unit: str
    change: float
    value: float
    value_exact: str
    exact: bool
    width: float
    message: str
    plan: str
    objective_value: float | None
    proof: str
    label: str = ""


class ChoiceDocument(Document):
    """A choice of the search, or an assumed fault, that something fits without, all else kept."""

    name: str
    message: str
    plan: str
    objective_value: float | None
    proof: str


class ConflictDocument(Document):
    """Why a problem instance has no plan, and what would change that.

    `constraints` is a smallest set that cannot hold together, whatever becomes of all others:
    without any one of them something fits. There is none where not even dropping everything helps.
    `relaxations` change one input each, the smallest relative change first; `without_help` lists
    inputs that alone do not help, and why; `choices` lists what need only be chosen otherwise.
    """

    kind: Literal["conflict"] = "conflict"
    schema_version: Literal[1] = 1
    instance: str
    instance_sha256: str
    termination: Literal["optimal", "feasible", "infeasible", "no_solution_found"]
    reason: str
    constraints: list[ConstraintDocument]
    is_smallest: bool
    relaxations: list[RelaxationDocument]
    without_help: list[str]
    choices: list[ChoiceDocument] = Field(default_factory=list)

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def to_dataframe(self) -> Any:
        """Return one row per relaxation; raises ImportError where pandas is missing."""
        return to_dataframe([item.model_dump(mode="json") for item in self.relaxations])
