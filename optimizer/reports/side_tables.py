"""Tables of the smaller decisions: stages, expert groups, exchanges, slices, links, mixes."""

from __future__ import annotations

from collections.abc import Sequence

from optimizer.reports.pool_tables import pool_tables
from optimizer.reports.supernode_tables import supernode_tables
from optimizer.reports.tables import (
    MAX_ACCOUNT_ROWS,
    Cell,
    Table,
    bytes_cell,
    count_cell,
    make_table,
    number_cell,
    text_cell,
)
from optimizer.reports.tier_tables import tier_tables
from optimizer.side.accounts import (
    ExpertGroupDocument,
    LinkLoadDocument,
    MixAcceleratorDocument,
    MixBucketDocument,
    PhaseDocument,
    SliceDocument,
    StageDocument,
)
from optimizer.side.result import SideEvaluationDocument
from optimizer.words import OPERATION_NAMES


def side_tables(found: SideEvaluationDocument) -> list[Table]:
    """Return the tables of whatever an account holds, but for those that go with a chart."""
    tables = []
    if found.groups:
        tables.append(group_table(found.groups))
    if found.phases:
        tables.append(phase_table(found.phases, found.phases_before))
    if found.slices:
        tables.append(slice_table(found.slices))
    if found.links:
        tables.append(link_table(found.links, found.links_before))
    if found.accelerators:
        tables.append(accelerator_table(found.accelerators))
        tables.append(bucket_table(found.buckets, found.accelerators))
    if found.pool is not None:
        tables += pool_tables(found.pool)
    if found.tiers is not None:
        tables += tier_tables(found.tiers)
    if found.supernode is not None:
        tables += supernode_tables(found.supernode)
    return tables


def stage_table(stages: Sequence[StageDocument]) -> Table:
    """Return the pipeline stages of a cut."""
    rows = [
        (
            Cell(f"{n} ({stage.pool})", n),
            Cell(f"{stage.first_layer}-{stage.first_layer + stage.num_layers - 1}", n),
            bytes_cell(stage.weights_bytes),
            bytes_cell(stage.other_bytes),
            bytes_cell(stage.capacity_bytes - stage.weights_bytes - stage.other_bytes),
            Cell("any", float("inf")) if stage.max_tokens is None else count_cell(stage.max_tokens),
            number_cell(stage.time_s or None, "s"),
        )
        for n, stage in enumerate(stages)
    ]
    columns = ["stage", ">layers", ">weights", ">other", ">room", ">tokens", ">time"]
    return make_table("stages", "Stages", columns, rows)


def group_table(groups: Sequence[ExpertGroupDocument]) -> Table:
    """Return the expert groups of a placement."""
    rows = [
        (
            count_cell(n),
            count_cell(len(group.experts)),
            count_cell(group.active_experts),
            number_cell(group.load),
            bytes_cell(group.resident_bytes),
            bytes_cell(group.capacity_bytes),
            number_cell(group.time_s, "s"),
        )
        for n, group in enumerate(groups)
    ]
    columns = [">group", ">experts", ">with work", ">assignments", ">memory", ">capacity", ">time"]
    return make_table("groups", "Expert groups", columns, rows, most=MAX_ACCOUNT_ROWS)


def phase_table(phases: Sequence[PhaseDocument], before: Sequence[PhaseDocument]) -> Table:
    """Return the exchanges of a step, beside those of ranks on free cards in order."""
    rows = []
    for n, phase in enumerate(phases):
        plain = before[n] if before else None
        rows.append(
            (
                text_cell(phase.name),
                text_cell(f"{OPERATION_NAMES[phase.operation]}, {phase.algorithm}"),
                count_cell(phase.times),
                Cell(f"{phase.groups} x {phase.ranks}", phase.groups),
                bytes_cell(round(phase.message_bytes)),
                Cell(f"{phase.num_spanning} of {phase.groups}", phase.num_spanning),
                bytes_cell(round(phase.exit_bytes) or None),
                number_cell(phase.step_s, "s"),
                number_cell(None if plain is None else plain.step_s, "s"),
                text_cell(None if plain is None else plain.algorithm),
            )
        )
    columns = ["phase", "exchange", ">times", ">groups", ">message", ">spanning", ">exit"]
    columns += [">a step", ">first fit", "first fit by"]
    return make_table("phases", "Exchanges of a step", columns, rows, most=MAX_ACCOUNT_ROWS)


def slice_table(slices: Sequence[SliceDocument]) -> Table:
    """Return the requested slices and where they stand."""
    rows = [
        (
            text_cell(piece.name),
            count_cell(piece.num_chips),
            text_cell("not placed" if piece.shape is None else " x ".join(map(str, piece.shape))),
            text_cell(None if piece.origin is None else f"({', '.join(map(str, piece.origin))})"),
        )
        for piece in slices
    ]
    columns = ["slice", ">chips", "shape", "from chip"]
    return make_table("slices", "Slices", columns, rows, most=MAX_ACCOUNT_ROWS)


def link_table(links: Sequence[LinkLoadDocument], before: Sequence[LinkLoadDocument]) -> Table:
    """Return the load of every link between NUMA nodes, beside that of the ring in card order."""
    rows = [
        (
            text_cell(f"{link.start} to {link.end}"),
            bytes_cell(link.load_bytes),
            number_cell(link.time_s, "s"),
            bytes_cell(before[n].load_bytes if before else None),
        )
        for n, link in enumerate(links)
    ]
    columns = ["link", ">load", ">time", ">card order"]
    return make_table("links", "Links between NUMA nodes", columns, rows, most=MAX_ACCOUNT_ROWS)


def accelerator_table(kinds: Sequence[MixAcceleratorDocument]) -> Table:
    """Return how many accelerators of each kind a mix has, their load and price together."""
    rows = [
        (
            text_cell(kind.name),
            count_cell(kind.count),
            Cell("any", float("inf")) if kind.max_count is None else count_cell(kind.max_count),
            number_cell(kind.load),
            number_cell(kind.price_per_hour),
        )
        for kind in kinds
    ]
    columns = ["accelerator", ">count", ">at most", ">load", ">price an hour"]
    return make_table("accelerators", "Accelerators", columns, rows, most=MAX_ACCOUNT_ROWS)


def bucket_table(
    buckets: Sequence[MixBucketDocument], kinds: Sequence[MixAcceleratorDocument]
) -> Table:
    """Return the requests of every bucket and the pieces that each kind serves."""
    rows = [
        (
            text_cell(bucket.name),
            number_cell(bucket.requests_per_s),
            *(count_cell(num or None) for num in bucket.pieces),
        )
        for bucket in buckets
    ]
    columns = ["bucket", ">requests/s", *(f">{kind.name}" for kind in kinds)]
    return make_table("buckets", "Pieces of each bucket", columns, rows, most=MAX_ACCOUNT_ROWS)
