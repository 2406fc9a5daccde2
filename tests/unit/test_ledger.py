"""The account of every card: bytes that add up, and atoms that are owned as often as they must."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from itertools import product
from typing import Any

import pytest

from instances.catalog_store import catalog_names
from instances.instance import Instance
from instances.io import parse_instance
from optimizer.evaluate import evaluate
from optimizer.ledger import CardAccount, Ledger, build_ledger
from optimizer.legality import check_config
from optimizer.ownership import stage_places, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.peak import buffer_bytes
from optimizer.plan import CardId, Plan, ServingInstance, SessionId

SESSIONS = tuple(SessionId("chat", i) for i in range(5))
GIB = 2**30


@cache
def problem(model: str, changes: str = "{}") -> Instance:
    """Five sessions on eight servers of eight cards; `changes` is JSON text."""
    cohort = {"name": "chat", "num_sessions": 5, "context_tokens": 3001, "new_tokens": 7}
    return parse_instance(
        {
            "name": "account",
            "model": model,
            "fleet": {
                "pools": [
                    {
                        "name": "hgx",
                        "server": "hgx-h100",
                        "num_servers": 8,
                        "fabric_between": "infiniband-ndr",
                    }
                ]
            },
            "workload": {"cohorts": [cohort]},
            "objective": {"minimise": ["makespan"]},
            **json.loads(changes),
        }
    )


def plan_of(instance: Instance, config: ParallelConfig, **fields: Any) -> Plan:
    """One serving instance on the first cards that serves every session."""
    cards = tuple(CardId(*divmod(number, 8)) for number in range(config.num_cards))
    if config.pp > 1 and "stages" not in fields:
        each, more = divmod(instance.model.num_layers, config.pp)
        fields["stages"] = tuple(each + (s < more) for s in range(config.pp))
    return Plan((ServingInstance("hgx", config, "ring", cards, SESSIONS, **fields),))


CONFIGS = [
    ParallelConfig(),
    ParallelConfig(tp=2),
    ParallelConfig(tp=8),
    ParallelConfig(tp=16),
    ParallelConfig(tp=4, dp=2),
    ParallelConfig(tp=4, dp=2, ep=8),
    ParallelConfig(dp=8, ep=8),
    ParallelConfig(dp=4, ep=4, pp=2),
    ParallelConfig(tp=2, pp=3),
    ParallelConfig(tp=2, cp=2, dp=2, ep=2),
    ParallelConfig(tp=2, copies=4, ep=8),
    ParallelConfig(tp=8, dcp=2, sp=8, pp=2),
    ParallelConfig(dp=12, ep=12, redundant=4),
]
#: Every model of the catalogue with every configuration that it allows.
LEGAL = [
    (model, config)
    for model, config in product(catalog_names("models"), CONFIGS)
    if not check_config(problem(model).model, config, problem(model).engine)
]


def ranges(text: str) -> list[int]:
    """The numbers in "0-7" or "3"; none in "padding only"."""
    if text == "padding only":
        return []
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def spans(text: str) -> list[tuple[int, int]]:
    """The ranges in "0-7 / 16-23", first and last, without expanding them."""
    found = []
    for part in text.split(" / "):
        if part != "padding only":
            first, _, last = part.partition("-")
            found.append((int(first), int(last or first)))
    return found


def covers_once(pieces: list[tuple[int, int]], size: int) -> bool:
    """Whether ranges lie side by side from 0 to size - 1."""
    end = 0
    for first, last in sorted(pieces):
        if first != end or last < first:
            return False
        end = last + 1
    return end == size


def stages_of(ledger: Ledger, config: ParallelConfig) -> list[list[CardAccount]]:
    found: list[list[CardAccount]] = [[] for _ in range(config.pp)]
    for card in ledger.cards:
        found[card.place.stage].append(card)
    return found


def test_most_models_have_several_legal_configurations() -> None:
    counts = Counter(model for model, _ in LEGAL)
    assert set(counts) == set(catalog_names("models"))
    assert min(counts.values()) >= 4
    assert {config for _, config in LEGAL} == set(CONFIGS)


@pytest.mark.parametrize(
    ("model", "config"), LEGAL, ids=[f"{model} {config.label()}" for model, config in LEGAL]
)
def test_every_account_adds_up(model: str, config: ParallelConfig) -> None:
    """Weights are those of the stage, caches those of the evaluator, buffers those declared."""
    instance = problem(model)
    plan = plan_of(instance, config, batch=2)
    serving, ledger = plan.instances[0], build_ledger(instance, plan)
    evaluation = evaluate(instance, plan)
    places = stage_places(instance.model, serving.stages)
    assert len(ledger.cards) == config.num_cards == len(evaluation.cards)
    for account, use in zip(ledger.cards, evaluation.cards, strict=True):
        place = places[account.place.stage]
        assert (account.pool, account.card) == (use.pool, use.card)
        assert account.layers == place.layers
        expected = stage_weight_bytes(instance.model, config, place, instance.engine)
        assert account.weights_bytes == expected == use.weights_bytes
        assert sum(part.num_bytes for part in account.caches) == use.kv_bytes
        assert sum(part.num_bytes for part in account.buffers) == 2 * GIB
        assert account.total_bytes == use.total_bytes
        assert account.capacity_bytes == use.capacity_bytes == 80 * 10**9
        assert all(part.num_bytes > 0 and part.reason for part in account.weights)
    (total,) = ledger.instances
    assert total.is_balanced
    assert total.held_bytes == sum(card.weights_bytes for card in ledger.cards)
    assert all(d.num_bytes > 0 and d.reason for d in total.duplications)


@pytest.mark.parametrize(
    ("model", "config"), LEGAL, ids=[f"{model} {config.label()}" for model, config in LEGAL]
)
def test_together_the_cards_own_every_layer_expert_and_row(
    model: str, config: ParallelConfig
) -> None:
    instance = problem(model)
    spec, ledger = instance.model, build_ledger(instance, plan_of(instance, config))
    stages = stages_of(ledger, config)
    layers = [layer for cards in stages for layer in cards[0].layers]
    assert layers == list(range(spec.num_layers))
    for cards in stages:
        assert {card.layers for card in cards} == {cards[0].layers}
        groups = {spec.group_of_layer[layer] for layer in cards[0].layers}
        sizes = {spec.groups[g].ffn.num_experts for g in groups if spec.groups[g].ffn.kind == "moe"}
        assert {"experts" in card.owns for card in cards} == {bool(sizes)}
        if sizes:
            (num_experts,) = sizes
            check_experts(cards, num_experts, config)
        check_tp_groups(cards, config)
        tables = [t for t in spec.tables if t.layer in cards[0].layers]
        rows = [
            span for card in cards for span in spans(card.owns.get("table rows", "padding only"))
        ]
        if len({t.num_rows for t in tables}) == 1:
            assert covers_once(sorted(set(rows)), tables[0].num_rows)
    for cards in (stages[0], stages[-1]):
        assert all("vocabulary rows" in card.owns for card in cards)
        for start in range(0, len(cards), config.tp):
            group = cards[start : start + config.tp]
            rows = [span for card in group for span in spans(card.owns["vocabulary rows"])]
            assert covers_once(rows, spec.vocab_size)


def check_experts(cards: list[CardAccount], num_experts: int, config: ParallelConfig) -> None:
    """Each expert is owned by the cards of one expert group; spare slots are counted."""
    owned: Counter[int] = Counter()
    spare = 0
    for card in cards:
        text = card.owns["experts"]
        real, _, more = text.partition(" and ")
        if "redundant" in real:
            real, more = "", real
        owned.update(ranges(real) if real else [])
        spare += int(more.split()[0]) if more else 0
    assert owned == dict.fromkeys(range(num_experts), config.moe_tp)
    assert spare == config.redundant * config.moe_tp


def check_tp_groups(cards: list[CardAccount], config: ParallelConfig) -> None:
    """In each TP group every atom is owned once, or each of fewer heads equally often."""
    for start in range(0, len(cards), config.tp):
        group = cards[start : start + config.tp]
        assert [card.place.tp for card in group] == list(range(config.tp))
        for name in ("query heads", "KV heads"):
            texts = [card.owns[name] for card in group if name in card.owns]
            if not texts or any(" / " in text for text in texts):
                continue  # layers with different numbers of heads
            assert len(texts) == config.tp
            owned = Counter(atom for text in texts for atom in ranges(text))
            assert sorted(owned) == list(range(max(owned) + 1))
            times = set(owned.values())
            assert len(times) == 1
            assert times == {1} or (name == "KV heads" and len(owned) < config.tp)


def owns(model: str, config: ParallelConfig, name: str, changes: str = "{}") -> list[str]:
    instance = problem(model, changes)
    ledger = build_ledger(instance, plan_of(instance, config))
    return [card.owns.get(name, "") for card in ledger.cards]


def test_owned_heads_by_hand() -> None:
    """Qwen3-32B: 64 query heads and 8 KV heads over 16 cards are 4 and half a KV head each."""
    config = ParallelConfig(tp=16)
    assert owns("qwen3-32b", config, "query heads")[:2] == ["0-3", "4-7"]
    assert owns("qwen3-32b", config, "KV heads") == [str(i // 2) for i in range(16)]
    assert owns("qwen3-32b", ParallelConfig(tp=2), "KV heads") == ["0-3", "4-7"]


def test_owned_rows_of_a_padded_vocabulary_by_hand() -> None:
    """151,936 rows over 16 cards, padded by the engine to multiples on each card or in all."""
    config, model = ParallelConfig(tp=16), "qwen3-32b"
    # 151,936 / 16 = 9,496 rows exactly.
    assert owns(model, config, "vocabulary rows")[15] == "142440-151935"
    # Padded to 1,000 on each card: 10,000 rows, so card 15 begins at 150,000 and has 1,936.
    engine: dict[str, Any] = {"base": "textbook", "vocabulary_multiple": 1000}
    rows = owns(model, config, "vocabulary rows", json.dumps({"engine": engine}))
    assert rows[0] == "0-9999"
    assert rows[15] == "150000-151935"
    # Padded to 20,000 on each card: 7 · 20,000 = 140,000 lie before card 7, which has the rest.
    engine = {"base": "textbook", "vocabulary_multiple": 20000}
    rows = owns(model, config, "vocabulary rows", json.dumps({"engine": engine}))
    assert rows[7] == "140000-151935"
    assert rows[8:] == ["padding only"] * 8
    # Padded to 64,000 in all: 192,000 rows, 12,000 a card; 12 · 12,000 = 144,000.
    engine |= {"vocabulary_multiple": 64000, "pads_vocabulary_per_card": False}
    rows = owns(model, config, "vocabulary rows", json.dumps({"engine": engine}))
    assert rows[12] == "144000-151935"
    assert rows[13:] == ["padding only"] * 3


def test_redundant_experts_by_hand() -> None:
    """128 experts and 4 spare slots over 12 groups: 11 each, 11 · 11 = 121 before the last."""
    found = owns("qwen3-235b-a22b", ParallelConfig(dp=12, ep=12, redundant=4), "experts")
    assert found[0] == "0-10"
    assert found[10] == "110-120"
    assert found[11] == "121-127 and 4 redundant"
    # 128 + 16 over 16 groups: 9 each; 14 · 9 = 126, so group 14 has 2 and group 15 none.
    found = owns("qwen3-235b-a22b", ParallelConfig(dp=16, ep=16, redundant=16), "experts")
    assert found[14] == "126-127 and 7 redundant"
    assert found[15] == "9 redundant"


def test_caches_go_to_the_group_that_serves_the_session() -> None:
    """Dealt in turn: sessions 0, 2 and 4 to group 0, sessions 1 and 3 to group 1."""
    instance, config = problem("qwen3-32b"), ParallelConfig(dp=2, tp=4)
    ledger = build_ledger(instance, plan_of(instance, config))
    texts = [card.caches[0].reason for card in ledger.cards]
    assert all(text.startswith("3 session(s) of chat with 3008 tokens") for text in texts[:4])
    assert all(text.startswith("2 session(s) of chat with 3008 tokens") for text in texts[4:])
    # 64 layers · 2 · 2 of 8 heads · 128 numbers · 2 B = 65,536 B a token on a card of TP4.
    assert [card.caches[0].num_bytes for card in ledger.cards[::4]] == [
        3 * 3008 * 65536,
        2 * 3008 * 65536,
    ]
    plan = plan_of(instance, config, batch=2, lanes=(2, 3, 2, 3, 0))
    ledger = build_ledger(instance, plan)
    assert ledger.cards[0].caches[0].reason.startswith("1 session(s)")
    assert ledger.cards[4].caches[0].reason.startswith("4 session(s)")


def test_an_instance_without_sessions_holds_no_cache() -> None:
    instance = problem("qwen3-32b")
    cards = tuple(CardId(0, i) for i in range(8))
    ledger = build_ledger(
        instance, Plan((ServingInstance("hgx", ParallelConfig(tp=8), "ring", cards),))
    )
    assert all(card.caches == () for card in ledger.cards)


def test_every_declared_buffer_is_listed() -> None:
    """Activations: 2 micro-batches · 2 sessions · 5120 numbers · 2 B · 2 for double buffers."""
    runtime = {
        "workspace_bytes": "1GiB",
        "collective_buffer_bytes": "2MiB",
        "migration_bytes": "3MiB",
        "count_activations": True,
        "double_buffers": True,
    }
    instance = problem("qwen3-32b", json.dumps({"runtime": runtime}))
    plan = plan_of(instance, ParallelConfig(tp=4, pp=2), batch=2, micro_batches=2)
    found = {
        part.component: part.num_bytes for part in build_ledger(instance, plan).cards[5].buffers
    }
    assert found == {
        "workspace": GIB,
        "collective_buffers": 2 * 2**20,
        "migration_room": 3 * 2**20,
        "activations": 2 * 2 * 5120 * 2 * 2,
    }
    assert sum(found.values()) == buffer_bytes(instance, plan.instances[0].footprint)


def test_loaded_side_parts_stand_on_the_last_stage() -> None:
    name = "deepseek-r1"
    part = problem(name).model.parts[0].name
    with_part = problem(name, json.dumps({"runtime": {"loaded_parts": [part]}}))
    config = ParallelConfig(tp=8, pp=2)
    plan = plan_of(with_part, config)
    ledger, without = build_ledger(with_part, plan), build_ledger(problem(name), plan)
    listed = [
        {p.component for p in card.weights if p.component.startswith(part)} for card in ledger.cards
    ]
    assert listed[:8] == [set()] * 8
    assert all(listed[8:])
    assert ledger.instances[0].is_balanced
    assert without.instances[0].is_balanced
    tensors = next(p.tensors for p in with_part.model.parts if p.name == part)
    whole = sum(tensor.total_bytes(with_part.model.formats) for tensor in tensors)
    extra = ledger.instances[0].one_copy_bytes - without.instances[0].one_copy_bytes
    assert extra == whole > 0


def test_several_instances_are_numbered_and_single_cards_can_be_chosen() -> None:
    instance, config = problem("qwen3-32b"), ParallelConfig(tp=2)
    serving = [
        ServingInstance("hgx", config, "ring", (CardId(i, 0), CardId(i, 1)), (SESSIONS[i],))
        for i in range(3)
    ]
    plan = Plan(tuple(serving))
    ledger = build_ledger(instance, plan)
    assert [card.instance for card in ledger.cards] == [0, 0, 1, 1, 2, 2]
    assert [account.instance for account in ledger.instances] == [0, 1, 2]
    one = build_ledger(instance, plan, [3])
    assert one.cards == (ledger.cards[3],)
    assert one.instances == (ledger.instances[1],)
