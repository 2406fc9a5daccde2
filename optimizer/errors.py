"""Everything the planner can raise."""

from __future__ import annotations

from instances.errors import InputError

__all__ = ["BackendUnavailable", "InputError", "MismatchError", "PlannerError", "TooLargeError"]


class PlannerError(Exception):
    """Base of what goes wrong inside the planner."""


class MismatchError(PlannerError):
    """What a solver claimed and what the evaluator computed differ: never a warning (law 1)."""


class BackendUnavailable(PlannerError):  # noqa: N818 - the name users see
    """A solver that was asked for is not on this machine."""


class TooLargeError(PlannerError):
    """A method declines a problem of this size; another one may take it."""
