"""Plans, evaluations and results as documents, and plans read back from them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from instances.instance import Instance
from instances.io import validate
from optimizer.errors import InputError
from optimizer.evaluation import Evaluation
from optimizer.operators import kv_bytes_per_token
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Footprint, InstanceGroup, Plan, ServingInstance, SessionId
from optimizer.result import (
    CandidateDocument,
    CardDocument,
    EvaluationDocument,
    GroupDocument,
    ParallelDocument,
    PlacementDocument,
    PlanDocument,
    RejectionDocument,
    SessionDocument,
    ViolationDocument,
)


def parallel_document(parallel: ParallelConfig) -> ParallelDocument:
    """Return degrees as a document."""
    return ParallelDocument(
        dp=parallel.dp,
        pp=parallel.pp,
        tp=parallel.tp,
        cp=parallel.cp,
        ep=parallel.ep,
        sp=parallel.sp,
        dcp=parallel.dcp,
        attention_copies=parallel.copies,
        redundant_experts=parallel.redundant,
    )


def footprint_document(footprint: Footprint) -> dict[str, Any]:
    """Return the fields that say how a serving instance is built."""
    return {
        "pool": footprint.pool,
        "parallel": parallel_document(footprint.parallel),
        "stages": list(footprint.stages),
        "batch": footprint.batch,
        "micro_batches": footprint.micro_batches,
        "num_servers": footprint.num_servers,
        "collective": footprint.collective or None,
    }


def document_label(document: CandidateDocument | RejectionDocument) -> str:
    """Return a candidate's name from its document: "TP8 (ring)", "PP2·TP8, batch 4 (ring)"."""
    return Footprint(
        document.pool,
        _parallel_config(document.parallel),
        document.num_servers,
        document.collective or "",
        tuple(document.stages),
        document.batch,
        document.micro_batches,
    ).label()


def _parallel_config(document: ParallelDocument) -> ParallelConfig:
    fields = document.model_dump()
    copies, redundant = fields.pop("attention_copies"), fields.pop("redundant_experts")
    return ParallelConfig(**fields, copies=copies, redundant=redundant)


def _placement(serving: ServingInstance) -> list[PlacementDocument]:
    by_server: dict[int, list[int]] = {}
    for card in serving.cards:
        by_server.setdefault(card.server, []).append(card.card)
    return [PlacementDocument(server=s, cards=c) for s, c in sorted(by_server.items())]


def _group(group: InstanceGroup) -> GroupDocument:
    first = group.first
    first_has_lanes = any(serving.lanes for serving in group.instances)
    return GroupDocument(
        count=len(group.instances),
        pool=first.pool,
        parallel=parallel_document(first.parallel),
        stages=list(first.stages),
        batch=first.batch,
        micro_batches=first.micro_batches,
        collective=first.collective,
        cards_per_instance=len(first.cards),
        placement=[_placement(serving) for serving in group.instances],
        sessions=[[str(session) for session in s.sessions] for s in group.instances],
        lanes=[list(s.lanes) for s in group.instances] if first_has_lanes else [],
    )


def plan_document(plan: Plan, fleet_cards: int) -> PlanDocument:
    """Return a plan as a document."""
    return PlanDocument(
        sentence=plan.sentence(fleet_cards),
        num_cards=plan.num_cards,
        groups=[_group(group) for group in plan.groups()],
    )


def plan_sha256(plan: PlanDocument) -> str:
    """Return the hexadecimal SHA-256 of a plan's groups as canonical JSON."""
    groups = plan.model_dump(mode="json")["groups"]
    text = json.dumps(groups, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _session_id(text: str, source: str, field: str) -> SessionId:
    cohort, slash, number = text.rpartition("/")
    if not slash or not number.isdecimal() or len(number) > 9:
        raise InputError(source, field, 'a session is "cohort/number", such as "chat/0"', text)
    return SessionId(cohort, int(number))


def _read_group(group: GroupDocument, source: str, where: str) -> list[ServingInstance]:
    for field, found in (("placement", group.placement), ("sessions", group.sessions)):
        if len(found) != group.count:
            rule = f"has {len(found)} entries for count {group.count}; give one per instance"
            raise InputError(source, f"{where}.{field}", rule)
    if group.lanes and len(group.lanes) != group.count:
        rule = f"has {len(group.lanes)} entries for count {group.count}; give one per instance"
        raise InputError(source, f"{where}.lanes", rule)
    serving = []
    for i in range(group.count):
        cards = tuple(
            CardId(part.server, card) for part in group.placement[i] for card in part.cards
        )
        sessions = tuple(
            _session_id(text, source, f"{where}.sessions[{i}][{j}]")
            for j, text in enumerate(group.sessions[i])
        )
        serving.append(
            ServingInstance(
                pool=group.pool,
                parallel=_parallel_config(group.parallel),
                collective=group.collective,
                cards=cards,
                sessions=sessions,
                stages=tuple(group.stages),
                batch=group.batch,
                micro_batches=group.micro_batches,
                lanes=tuple(group.lanes[i]) if group.lanes else (),
            )
        )
    return serving


def read_plan(document: Any, source: str = "plan") -> Plan:
    """Return the plan in a plan document, or in a result document that holds one.

    Raises InputError with the field that does not fit.
    """
    if isinstance(document, Mapping) and "plan" in document:
        document = document["plan"]
        if document is None:
            raise InputError(source, "plan", "this result holds no plan; nothing to verify")
    if not isinstance(document, Mapping):
        raise InputError(source, "", "a plan is a JSON object with a list of groups")
    parsed = validate(PlanDocument, dict(document), source)
    return Plan(
        tuple(
            serving
            for g, group in enumerate(parsed.groups)
            for serving in _read_group(group, source, f"groups[{g}]")
        )
    )


def as_float(value: Fraction | int | None) -> float | None:
    """Return the nearest float; None stays None."""
    return None if value is None else float(value)


def as_text(value: Fraction | int | None) -> str | None:
    """Return an exact fraction as text, such as "8/3"; None stays None."""
    return None if value is None else str(Fraction(value))


def both(name: str, value: Fraction | None) -> dict[str, Any]:
    """Return a number as a float and exactly; "_s" of seconds stays out of the exact one's name."""
    exact = name if name.endswith("per_s") else name.removesuffix("_s")
    return {name: as_float(value), f"{exact}_exact": as_text(value)}


def evaluation_document(instance: Instance, evaluation: Evaluation) -> EvaluationDocument:
    """Return an evaluation as a document."""
    return EvaluationDocument(
        sessions=[
            SessionDocument(
                session=str(o.session),
                instance=o.instance,
                start_s=as_float(o.start_s),
                finish_s=as_float(o.finish_s),
                finish_exact=as_text(o.finish_s),
                deadline_s=as_float(o.deadline_s),
                on_time=o.on_time,
                restarts=o.num_restarts,
            )
            for o in evaluation.sessions
        ],
        makespan_s=as_float(evaluation.makespan_s),
        max_latency_s=as_float(evaluation.max_latency_s),
        mean_completion_s=as_float(evaluation.mean_completion_s),
        occupied_card_s=as_float(evaluation.occupied_card_s),
        energy_j=as_float(evaluation.energy_j),
        cost_per_on_time_session=as_float(evaluation.cost_per_on_time_session),
        num_on_time=evaluation.num_on_time,
        num_cards=evaluation.num_cards,
        held_sessions=evaluation.held_sessions,
        kv_bytes_per_token=math.ceil(kv_bytes_per_token(instance.model)),
        cards=[
            CardDocument(
                pool=use.pool,
                server=use.card.server,
                card=use.card.card,
                instance=use.instance,
                weights_bytes=use.weights_bytes,
                kv_bytes=use.kv_bytes,
                workspace_bytes=use.workspace_bytes,
                total_bytes=use.total_bytes,
                capacity_bytes=use.capacity_bytes,
            )
            for use in evaluation.cards
        ],
        violations=[
            ViolationDocument(
                rule=v.rule,
                where=v.where,
                amount=float(v.amount),
                unit=v.unit,
                message=v.message,
            )
            for v in evaluation.violations
        ],
    )
