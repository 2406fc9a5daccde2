"""Measured session times: which footprint they are of (section 7: replace estimates)."""

from __future__ import annotations

from fractions import Fraction

from instances.instance import Instance
from instances.measurements import MeasuredSession
from instances.workload import Cohort
from optimizer.plan import Footprint

#: Degrees that a measurement names as a footprint does.
DEGREES = ("tp", "pp", "cp", "dp", "ep", "dcp", "attention_copies")


def matches(measured: MeasuredSession, footprint: Footprint, cohort: str) -> bool:
    """Whether a measurement is of sessions of a cohort on this footprint."""
    shape = footprint.parallel
    wanted = (
        (measured.pool, footprint.pool),
        (measured.cohort, cohort),
        (measured.num_servers, footprint.num_servers),
        (measured.collective, footprint.collective or "none"),
    )
    return (
        all(said is None or said == is_so for said, is_so in wanted)
        and all(getattr(measured, name) == getattr(shape, name) for name in DEGREES)
        and (measured.batch, measured.micro_batches) == (footprint.batch, footprint.micro_batches)
    )


def measured_session_s(instance: Instance, footprint: Footprint, cohort: Cohort) -> Fraction | None:
    """Return the measured time of a session in s; None where nobody measured it."""
    for measured in instance.measurements:
        if matches(measured, footprint, cohort.name):
            return measured.session_s
    return None
