"""The account of every card: what it owns, every byte on it, and why (section 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from instances.engine import EngineProfile
from instances.instance import Instance
from instances.tensors import Tensor
from optimizer.inventory import weight_bytes
from optimizer.ownership import (
    Duplication,
    StagePlace,
    WeightPart,
    duplications,
    stage_places,
    stage_tensors,
    stage_weight_parts,
    state_parts,
)
from optimizer.parallel import Coordinates, ParallelConfig, coordinates
from optimizer.peak import buffer_parts, usable_bytes
from optimizer.plan import CardId, Plan, ServingInstance
from optimizer.shards import cut_degree, shard_of

_BUFFER_REASONS = {
    "workspace": "declared by runtime.workspace_bytes",
    "collective_buffers": "declared by runtime.collective_buffer_bytes",
    "migration_room": "declared by runtime.migration_bytes",
    "activations": "hidden vectors of the tokens in flight",
}


@dataclass(frozen=True, slots=True)
class CardAccount:
    """One card: where it stands, which layers and atoms it owns, and every byte on it.

    `owns` maps atoms ("query heads", "experts", …) to the ranges of them, such as "0-7".
    """

    pool: str
    card: CardId
    instance: int
    place: Coordinates
    layers: range
    owns: dict[str, str]
    weights: tuple[WeightPart, ...]
    caches: tuple[WeightPart, ...]
    buffers: tuple[WeightPart, ...]
    capacity_bytes: int

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights on the card."""
        return sum(part.num_bytes for part in self.weights)

    @property
    def total_bytes(self) -> int:
        """Every byte on the card."""
        return sum(p.num_bytes for p in (*self.weights, *self.caches, *self.buffers))


@dataclass(frozen=True, slots=True)
class InstanceAccount:
    """Weights of a serving instance over all its cards: one copy, and what is held beyond it."""

    instance: int
    held_bytes: int
    one_copy_bytes: int
    duplications: tuple[Duplication, ...]

    @property
    def is_balanced(self) -> bool:
        """Whether one copy and the listed duplications are all that the cards hold."""
        extra = sum(duplication.num_bytes for duplication in self.duplications)
        return self.held_bytes == self.one_copy_bytes + extra


@dataclass(frozen=True, slots=True)
class Ledger:
    """Accounts of all cards that a plan uses, and of its serving instances."""

    cards: tuple[CardAccount, ...]
    instances: tuple[InstanceAccount, ...]


def _span(first: int, end: int) -> str:
    return f"{first}" if end - first == 1 else f"{first}-{end - 1}"


def _atoms(
    tensor: Tensor, at: Coordinates, config: ParallelConfig, engine: EngineProfile
) -> tuple[str, str] | None:
    """Return (atoms, range) that a card owns of a tensor; None for what is copied."""
    if tensor.split == "copy" or not tensor.unit:
        return None
    degree = cut_degree(tensor, config)
    index = at.expert_part if tensor.is_expert else at.tp
    if tensor.unit == "table rows":
        index = ((at.dp * config.copies + at.copy) * config.cp + at.cp) * config.tp + at.tp
    units = tensor.units
    if tensor.is_replicable and degree > units:
        first = index // (degree // units)
        return tensor.unit, _span(first, first + 1)
    each = -(-units // degree)
    if tensor.role == "vocabulary":
        each = shard_of(tensor, config, engine).outputs  # the engine's padding moves the borders
    first, end = min(index * each, units), min((index + 1) * each, units)
    name = f"{tensor.component} columns" if tensor.unit == "FFN columns" else tensor.unit
    return name, _span(first, end) if first < end else "padding only"


def _owned(
    instance: Instance, place: StagePlace, at: Coordinates, config: ParallelConfig
) -> dict[str, str]:
    """Return the atoms of every kind that a card owns on its stage."""
    owns: dict[str, dict[str, None]] = {}
    for tensor, _, part in stage_tensors(instance.model, place, instance.runtime.loaded_parts):
        found = None if part else _atoms(tensor, at, config, instance.engine)
        if found is not None:
            owns.setdefault(found[0], {})[found[1]] = None
        if tensor.is_expert and not part:
            shard = shard_of(tensor, config, instance.engine)
            first = at.expert_group * shard.count
            last = min(first + shard.count, tensor.count)
            text = _span(first, last) if first < last else ""
            spare = first + shard.count - max(first, last)
            if spare:
                text = f"{text} and {spare} redundant" if text else f"{spare} redundant"
            owns.setdefault("experts", {})[text] = None
    return {name: " / ".join(ranges) for name, ranges in owns.items()}


def _caches(
    instance: Instance, serving: ServingInstance, group: int, place: StagePlace
) -> tuple[WeightPart, ...]:
    """Return the caches of an attention group's sessions on a card of a stage."""
    cohorts = {cohort.name: cohort for cohort in instance.workload.cohorts}
    per_group, counts = serving.footprint.lanes_per_group, dict.fromkeys(cohorts, 0)
    for position, session in enumerate(serving.sessions):
        if session.cohort in counts and serving.lane_of(position) // per_group == group:
            counts[session.cohort] += 1
    found = []
    for name, count in counts.items():
        if not count:
            continue
        sharing, tokens = instance.search.kv_sharing, cohorts[name].held_tokens
        for part in state_parts(instance.model, serving.parallel, place, tokens, sharing):
            text = f"{count} session(s) of {name} with {tokens} tokens; {part.reason}"
            found.append(WeightPart(part.component, count * part.num_bytes, text))
    return tuple(found)


def instance_accounts(
    instance: Instance, index: int, serving: ServingInstance
) -> tuple[list[CardAccount], InstanceAccount]:
    """Return the accounts of a serving instance's cards, and of the instance; it must be legal."""
    model, config = instance.model, serving.parallel
    loaded, places = instance.runtime.loaded_parts, stage_places(model, serving.stages)
    pool = next(pool for pool in instance.fleet.pools if pool.name == serving.pool)
    weights = [
        stage_weight_parts(model, config, place, instance.engine, loaded) for place in places
    ]
    buffers = tuple(
        WeightPart(name, size, _BUFFER_REASONS[name])
        for name, size in buffer_parts(instance, serving.footprint)
    )
    cards = []
    for number, card in enumerate(serving.cards):
        at = coordinates(config, number)
        place = places[at.stage]
        cards.append(
            CardAccount(
                pool=serving.pool,
                card=card,
                instance=index,
                place=at,
                layers=place.layers,
                owns=_owned(instance, place, at, config),
                weights=weights[at.stage],
                caches=_caches(instance, serving, at.dp, place),
                buffers=buffers,
                capacity_bytes=usable_bytes(instance, pool),
            )
        )
    parts = sum(
        t.total_bytes(model.formats) for p in model.parts if p.name in loaded for t in p.tensors
    )
    account = InstanceAccount(
        instance=index,
        held_bytes=sum(card.weights_bytes for card in cards),
        one_copy_bytes=weight_bytes(model, with_parts=False) + parts,
        duplications=duplications(model, config, serving.stages, instance.engine, loaded),
    )
    return cards, account


def build_ledger(instance: Instance, plan: Plan, only: Sequence[int] | None = None) -> Ledger:
    """Return the accounts of a plan that breaks no structural rule.

    `only` limits the cards to those numbers, counted over all serving instances in plan order, and
    the serving instances to those that own them.
    """
    cards: list[CardAccount] = []
    instances: list[InstanceAccount] = []
    for index, serving in enumerate(plan):
        mine, account = instance_accounts(instance, index, serving)
        cards += mine
        instances.append(account)
    if only is None:
        return Ledger(tuple(cards), tuple(instances))
    chosen = tuple(cards[n] for n in only)
    owners = {card.instance for card in chosen}
    return Ledger(chosen, tuple(a for a in instances if a.instance in owners))
