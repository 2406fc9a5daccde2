"""The objectives of a problem instance as terms that solvers can add up (section 7)."""

from __future__ import annotations

from fractions import Fraction

from instances.instance import Instance
from optimizer.protocols import Ceiling, Measure, Term


def objective_terms(instance: Instance) -> tuple[Term, ...]:
    """Return one term per objective, most important first."""
    terms = all_terms(instance)
    return tuple(terms[name] for name in instance.objective.names)


def budget_ceilings(instance: Instance) -> tuple[Ceiling, ...]:
    """Return the limits of `objective.at_most` as ceilings on terms."""
    terms = all_terms(instance)
    return tuple(Ceiling(terms[name], most) for name, most in instance.objective.at_most.limits())


def all_terms(instance: Instance) -> dict[str, Term]:
    """Return the term of every objective by its name.

    Under "fleet" billing every card (and all power) is paid until the last session ends, so cost
    and energy are the makespan times a constant; under "instance" billing they are sums.
    """
    by_fleet = instance.objective.billing == "fleet"
    pools, one = instance.fleet.pools, Fraction(1)
    cards = Fraction(instance.fleet.num_cards)
    power = Fraction(sum((p.server.power_w or 0) * p.num_servers for p in pools))
    occupied = (Measure.END, cards) if by_fleet else (Measure.CARD_SECONDS, one)
    energy = (Measure.END, power) if by_fleet else (Measure.ENERGY, one)
    return {
        "makespan": Term("makespan", Measure.END, one),
        "max_latency": Term("max_latency", Measure.LATENCY, one),
        "mean_completion": Term(
            "mean_completion", Measure.COMPLETION, 1 / Fraction(instance.workload.num_sessions)
        ),
        "cost_per_on_time_session": Term("cost_per_on_time_session", *occupied, per_on_time=True),
        "occupied_card_seconds": Term("occupied_card_seconds", *occupied),
        "energy": Term("energy", *energy),
        "cards": Term("cards", Measure.CARDS, one),
        "held_sessions": Term("held_sessions", Measure.HELD, one),
    }
