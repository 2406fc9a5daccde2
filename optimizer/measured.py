"""Measured times take the place of modelled ones: of sessions, and of collectives (section 7)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from instances.fleet import Pool
from instances.instance import Instance
from instances.measurements import MeasuredSession
from instances.workload import Cohort
from optimizer.collectives import MEASURED, NO_COLLECTIVE, CollectiveUnavailable
from optimizer.plan import Footprint
from optimizer.steps import check_prices, prompt_s

#: Degrees by their name in a measurement and in a footprint.
DEGREES = {name: name for name in ("tp", "pp", "cp", "dp", "ep", "sp", "dcp")}
DEGREES["attention_copies"] = "copies"


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
        and all(getattr(measured, said) == getattr(shape, name) for said, name in DEGREES.items())
        and (measured.batch, measured.micro_batches) == (footprint.batch, footprint.micro_batches)
    )


def is_replaced(instance: Instance, pool: Pool, footprint: Footprint) -> bool:
    """Whether measured tables take the place of the collective that a footprint models.

    They do where the search allows them and they cover every reduction of its steps.
    """
    search = instance.search
    if search.collective_choice == "per_message" or MEASURED not in search.collectives:
        return False
    if footprint.collective in (MEASURED, NO_COLLECTIVE):
        return False
    try:
        check_prices(instance, pool, replace(footprint, collective=MEASURED))
    except CollectiveUnavailable:
        return False
    return True


def measured_session_s(instance: Instance, footprint: Footprint, cohort: Cohort) -> Fraction | None:
    """Return the measured time of a session in s; None where nobody measured it.

    Raises CollectiveUnavailable where the footprint cannot read the session's prompt.
    """
    for measured in instance.measurements:
        if matches(measured, footprint, cohort.name):
            pool = next(pool for pool in instance.fleet.pools if pool.name == footprint.pool)
            prompt_s(instance, pool, footprint, cohort)  # its collectives must exist, too
            return measured.session_s
    return None
