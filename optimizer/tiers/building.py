"""The data of a decision of tiers from an instance (6.6.3, 6.7.4)."""

from __future__ import annotations

from fractions import Fraction

from instances.instance import Instance
from instances.tiers import DataClass, TierDecision
from optimizer.tiers.problem import Data, Machine, Tier, TierProblem
from optimizer.windows import usable_bytes_per_s


def tier_problem(instance: Instance) -> TierProblem:
    """Return the data of the instance's tiers; tiers are as fast as 6-12 allows."""
    section = instance.tiers
    assert section is not None
    return section_problem(section)


def section_problem(section: TierDecision) -> TierProblem:
    """Return the data of a section."""
    paths: dict[tuple[str, bool], int] = {}  # a tier's own path may bear the name of a shared one
    tiers = []
    for tier in section.tiers:
        key = (tier.name, False) if tier.path is None else (tier.path, True)
        speed = usable_bytes_per_s(tier.access)
        tiers.append(
            Tier(
                name=tier.name,
                capacity_bytes=tier.size_bytes,
                bytes_per_s=speed,
                path=paths.setdefault(key, len(paths)),
                write_bytes_per_s=tier.write_bytes_per_s or speed,
                round_trip_s=tier.access.round_trip_s,
                max_reads_per_s=tier.max_reads_per_s,
                price_per_hour=tier.price_per_hour,
                is_writable=tier.can_be_written,
                bytes_per_mm2=tier.bytes_per_mm2,
            )
        )
    number = {tier.name: t for t, tier in enumerate(tiers)}
    return TierProblem(
        machine=_machine(section),
        paths=tuple(name for name, _ in paths),
        tiers=tuple(tiers),
        classes=tuple(_data(data, number) for data in section.classes),
        goal=section.goal,
        min_sessions=section.sessions.min,
        max_sessions=section.sessions.max,
        step_target_s=section.step_target_s,
    )


def _machine(section: TierDecision) -> Machine:
    machine = section.machine
    return Machine(
        num_cards=machine.num_cards,
        tokens_per_step=machine.tokens_per_step,
        peak_flops_per_s=machine.peak_flops_per_s,
        fixed_flops=Fraction(machine.fixed_flops),
        flops_per_session=Fraction(machine.flops_per_session),
        communication_s=machine.communication_s,
        communication_s_per_session=machine.communication_s_per_session,
        fixed_s=machine.fixed_s,
        balance=machine.balance,
        first_block_share=machine.first_block_share or Fraction(0),
        price_per_hour=machine.price_per_hour,
    )


def _data(data: DataClass, number: dict[str, int]) -> Data:
    read, read_per_session = data.read_bytes, data.read_bytes_per_session
    if data.kind == "snapshot":  # all of it, every time
        read, read_per_session = data.reads * data.bytes, data.reads * data.bytes_per_session
    return Data(
        name=data.name,
        tiers=tuple(number[name] for name in data.tiers or number),
        bytes=data.bytes + data.idle_sessions * data.bytes_per_idle_session,
        bytes_per_session=data.bytes_per_session,
        read_bytes=Fraction(read),
        read_bytes_per_session=Fraction(read_per_session),
        write_bytes_per_session=Fraction(data.write_bytes_per_session),
        lookups=data.lookups,
        lookups_per_session=data.lookups_per_session,
        lookup_bytes=data.lookup_bytes or 0,
        is_prefetched=data.is_prefetched,
        is_written=data.changes,
        may_copy=data.may_copy,
        resumes_per_s=data.resumes_per_s,
        resume_bytes=data.bytes_per_idle_session,
        max_resume_s=data.max_resume_s,
    )
