"""The document of a sensitivity study."""

from __future__ import annotations

import json
from typing import Any, Literal

from optimizer.frame import to_dataframe
from optimizer.result import Document


class InputThreshold(Document):
    """Where one input, moved one way, changes the optimal plan.

    "unchanged": the plan is optimal at `value`, the furthest value looked at. "changes": at `value`
    it is still optimal, just beyond it is not, and `plan` is (null: nothing fits, see `reason`).
    `exact` tells whether `value` is the very value, a fraction in `value_exact`; else the change
    lies within `width` beyond it. A threshold is not `is_attained` where the plan is optimal at all
    that falls short of `value`, but not at `value` itself. `is_first` tells whether it is proven
    that nothing changes on the way there. `verified` says that both sides were solved again.
    """

    status: Literal["changes", "unchanged"]
    value: float
    value_exact: str
    change: float
    exact: bool
    width: float
    is_first: bool
    is_attained: bool = True
    verified: bool
    plan: str | None
    reason: str


class InputSensitivity(Document):
    """One numeric input: what moving it does to the objective and to the plan.

    `halved` and `doubled` are changes of the first objective with the plan kept, null where it is
    not allowed; `step_*_s` are changes of the first decode step of its slowest serving instance,
    null where that has no price or the session was measured. All are null where the input has no
    such value. Half of a whole number is rounded down.
    """

    path: str
    unit: str
    value: float
    value_exact: str
    halved: float | None
    doubled: float | None
    step_halved_s: float | None
    step_doubled_s: float | None
    down: InputThreshold | None
    up: InputThreshold | None

    @property
    def influence(self) -> float:
        """The larger change of the objective, whichever way the input moves."""
        return max(abs(self.halved or 0.0), abs(self.doubled or 0.0))


class SensitivityDocument(Document):
    """Thresholds of every input, and the input that moves the objective most."""

    kind: Literal["sensitivity"] = "sensitivity"
    schema_version: Literal[1] = 1
    instance: str
    instance_sha256: str
    plan: str
    objective: str
    unit: str
    value: float
    value_exact: str
    inputs: list[InputSensitivity]
    most_influential: str | None
    num_solves: int = 0

    def to_json(self) -> str:
        """Return the document as indented JSON, ending in a newline."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def to_dataframe(self) -> Any:
        """Return one row per input and direction; raises ImportError where pandas is missing."""
        rows = []
        for item in self.inputs:
            for direction, threshold in (("down", item.down), ("up", item.up)):
                found = {} if threshold is None else threshold.model_dump(mode="json")
                head = item.model_dump(mode="json", exclude={"down", "up"})
                named = {("threshold" if k == "value" else k): v for k, v in found.items()}
                named.pop("value_exact", None)
                rows.append({**head, "direction": direction, **named})
        return to_dataframe(rows)
