"""Supernodes from an instance: bytes by hand, domains, splits, lookups, and what is refused."""

from __future__ import annotations

import json
from copy import deepcopy
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from instances.errors import InputError
from instances.io import example_text, load_instance, parse_instance
from optimizer.supernode.building import supernode_problem
from optimizer.supernode.problem import ExpertReads, Line, Option, SupernodeProblem

F = Fraction
Document = dict[str, Any]

#: 32 numbers a hidden vector; 6 experts a layer of 3 · 32 · 16 numbers, of which a token takes two.
MOE: Document = {
    "name": "tiny-moe",
    "hidden_size": 32,
    "vocab_size": 32,
    "tied_embeddings": False,
    "groups": [
        {
            "name": "all",
            "layers": "0-1",
            "attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 8},
            "ffn": {"kind": "moe", "num_experts": 6, "experts_per_token": 2, "expert_size": 16},
            "extra": [{"component": "projection", "outputs": 5, "inputs": 5}],
        }
    ],
    "tables": [
        {
            "name": "rows",
            "layer": 1,
            "num_rows": 101,
            "row_size": 8,
            "rows_per_token": 3,
            "format": {"number": "fp8"},
        }
    ],
}
DENSE: Document = {
    "name": "tiny",
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "ffn_size": 64,
    "vocab_size": 32,
}
HOST: Document = {
    "capacity_bytes": 900,
    "access": {"bandwidth_bytes_per_s": 48, "round_trip_s": 2},
    "max_reads_per_s": 6,
}
#: Bytes of BF16 matrices of a layer that no expert has: attention 32·32 + 2·32·16 + 32·32,
#: a router of 6 · 32.
ATTENTION, ROUTER, EXPERT, VOCABULARY = 2 * 3072, 2 * 192, 2 * 1536, 2 * 1024


def instance(model: Document = MOE, **section: Any) -> Document:
    """8 servers of 4 cards with 100 B/s and 1 s a round inside, 10 B/s and 3 s between."""
    accelerator = {
        "name": "card",
        "memory_bytes": 100_000,
        "memory_bandwidth_bytes_per_s": 1000,
        "peak_flops_per_s": {"bf16": 10**6, "fp8": 2 * 10**6},
    }
    inside = {"name": "inside", "alpha_s": 1, "bandwidth_bytes_per_s": 100}
    between = {"name": "between", "alpha_s": 3, "bandwidth_bytes_per_s": 10}
    server = {"name": "server", "accelerator": accelerator, "num_cards": 4, "fabric": inside}
    pool = {"name": "pool", "server": server, "num_servers": 8, "fabric_between": between}
    cohort = {"name": "chat", "num_sessions": 9, "context_tokens": 15, "new_tokens": 1}
    return {
        "name": "small",
        "decision": "supernode",
        "model": deepcopy(model),
        "fleet": {"pools": [pool]},
        "workload": {"cohorts": [cohort], "routing": "expected"},
        "runtime": {"workspace_bytes": 700},
        "supernode": section,
    }


def built(model: Document = MOE, **section: Any) -> SupernodeProblem:
    return supernode_problem(parse_instance(instance(model, **section)))


def option(size: int, place: str = "hbm", degree: int = 1, **section: Any) -> Option:
    found = built(**{"attention_tp": [degree], **section}).option(size, place, degree)
    assert found is not None
    return found


def refused(document: Document, field: str, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        supernode_problem(parse_instance(document))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_what_a_card_holds() -> None:
    """12 experts over 8 cards are two at most, 101 rows of 8 B 13; norms are 32 numbers each.

    Two norms a layer and one at the end. The two projections of 50 B can be dealt with the tables.
    """
    norms = 2 * 32 * 5
    copied = 2 * (ATTENTION + ROUTER + 50) + norms + 2 * VOCABULARY
    found = option(8)
    assert found.replicated_bytes == copied
    assert found.read_bytes == copied - VOCABULARY  # single rows of the embedding
    assert (found.expert_bytes, found.table_bytes) == (2 * EXPERT, 13 * 8)
    assert found.weight_bytes == copied + 2 * EXPERT + 104
    dealt = option(8, tables_with=["projection"])
    assert dealt.replicated_bytes == copied - 100
    assert dealt.read_bytes == found.read_bytes - 100
    assert dealt.table_bytes == 104 + 2 * 7  # of each 50 B the fullest of 8 cards has 7
    on_host = option(8, "host", tables=["hbm", "host"], host=HOST, tables_with=["projection"])
    assert (on_host.table_bytes, on_host.host_bytes) == (14, 104)
    one = option(1)
    assert (one.expert_bytes, one.table_bytes) == (12 * EXPERT, 808)
    # two KV heads of 8 numbers, K and V, in two layers for 16 tokens
    assert {o.session_bytes for o in (found, dealt, on_host, one)} == {2 * 16 * 2 * 2 * 8 * 2}


def test_a_tied_embedding_is_read_whole() -> None:
    tied = {**MOE, "tied_embeddings": True}
    found = built(tied, sizes=[8]).options[0]
    assert found.replicated_bytes == option(8).replicated_bytes - VOCABULARY
    assert found.read_bytes == found.replicated_bytes


def test_what_a_token_takes() -> None:
    """2 FLOP for each number of a matrix; two experts; QK and PV of 4 heads with 16 tokens."""
    dense = 2 * (ATTENTION // 2 + ROUTER // 2 + 25) + VOCABULARY // 2
    attended = 2 * 2 * 2 * 4 * 8 * 16
    found = option(8)
    assert found.flops == 2 * (dense + 2 * 2 * EXPERT // 2) + attended
    assert found.kv_read_bytes == found.session_bytes
    given = option(8, flops_per_token=1234, kv_read_bytes_per_token=99)
    assert (given.flops, given.kv_read_bytes) == (1234, 99)
    assert given.experts == (ExpertReads(2, 6, 2, EXPERT, "expected"),)


def test_a_split_of_attention() -> None:
    """Heads, KV heads and vocabulary are cut in two; router, projection and norms are copied."""
    whole, half = option(4, sizes=[4]), option(4, degree=2, sizes=[4])
    copied = 2 * (ROUTER + 50) + 2 * 32 * 5
    assert half.replicated_bytes == (whole.replicated_bytes - copied) // 2 + copied
    assert half.session_bytes == whole.session_bytes // 2
    assert half.expert_bytes == whole.expert_bytes
    given = option(4, degree=2, sizes=[4], flops_per_token=1000, kv_read_bytes_per_token=100)
    assert given.flops == 1000 * half.flops / whole.flops
    assert given.kv_read_bytes == 50
    # dispatch: half of 2 · 32 · 2 B a session from each card, 3/4 of that to others
    dispatch, attention, gather = half.exchanges
    assert (dispatch.times, dispatch.algorithms) == (4, ((Line(F(1), F(64 * 3, 400)),),))
    # ring: 2 rounds of half of 64 B; tree: 2 · 1 rounds of 64 B
    assert (attention.name, attention.times) == ("attention", 2)
    assert attention.algorithms == ((Line(F(2), F(64, 100)),), (Line(F(2), F(128, 100)),))
    assert (gather.name, gather.times, gather.algorithms) == (
        *("gather", 2),
        ((Line(F(1), F(32, 100)),),),
    )
    # a group that is the whole supernode has all tokens on all cards: nothing is dispatched
    alone = option(4, degree=4, sizes=[4])
    assert [exchange.name for exchange in alone.exchanges] == ["attention", "ffn"]
    assert alone.session_bytes == whole.session_bytes // 2  # each of two KV heads on two cards


def test_dispatch_and_combine_within_a_domain_and_beyond() -> None:
    """128 B a session, of which 7/8 leave a card; in domains of four, 3/8 stay in, 4/8 leave it."""
    (inside,) = option(8).exchanges
    assert (inside.name, inside.times) == ("dispatch and combine", 4)
    assert inside.algorithms == ((Line(F(1), F(112, 100)),),)
    (across,) = option(8, domain_cards=4).exchanges
    assert across.algorithms == ((Line(F(1), F(48, 100)), Line(F(3), F(64, 10))),)
    link = {"alpha_s": "5s", "bandwidth_bytes_per_s": 64}
    (given,) = option(8, domain_cards=4, between=link).exchanges
    assert given.algorithms == ((Line(F(1), F(48, 100)), Line(F(5), F(1))),)
    (apart,) = option(8, domain_cards=1).exchanges
    assert apart.algorithms == ((Line(F(3), F(112, 10)),),)
    assert option(1).exchanges == ()
    (wide,) = option(8, bytes_per_number=1).exchanges
    assert wide.algorithms == ((Line(F(1), F(56, 100)),),)


def test_what_lines_up_with_domains() -> None:
    """Of 24 cards in domains of 6: 3 and 12 line up, 4 leave 2 over; a pair cannot span domains."""
    found = built(num_cards=24, sizes=[3, 4, 12], domain_cards=6)
    assert [o.alignment_cards for o in found.options] == [0, 2, 0]
    assert [o.num_hosts for o in found.options] == [1, 1, 2]
    pairs = built(num_cards=24, sizes=[4, 12], domain_cards=6, attention_tp=[4])
    assert [o.alignment_cards for o in pairs.options] == [2, 4]


def test_connections_of_a_supernode_that_spans_hosts() -> None:
    """Channels of 1 endpoint a host: 20 + 32 B and 56 for the other; 5 us, then 505 us (6.5.5)."""
    document = instance(sizes=[4, 8], domain_cards=4)
    document["fleet"]["pools"][0]["connections"] = {
        "organisation": "channels",
        "endpoints_per_host": 1,
        "cache_bytes": 100,
        "max_setup_s": "1ms",
    }
    found = supernode_problem(parse_instance(document))
    assert (found.max_state_bytes, found.max_setup_s) == (100, F(1, 1000))
    assert [o.state_bytes for o in found.options] == [0, 108]
    assert [o.setup_s for o in found.options] == [0, F(510, 10**6)]


def test_lookups_of_rows() -> None:
    """3 rows of 8 B a token before layer 1 of 2: 7/8 over the fabric, or all from the host.

    The host takes 2 s, then 24 B at 48 B/s or 3 rows at 6 a second, whichever is slower.
    """
    inside = option(8).lookup
    assert inside is not None
    assert (inside.rows_per_session, inside.hidden_share) == (3, F(1, 2))
    assert inside.lines == (Line(F(1), F(21, 100)),)
    on_host = option(8, "host", tables=["host"], host=HOST).lookup
    assert on_host is not None
    assert on_host.lines == (Line(F(2), F(1, 2)), Line(F(2), F(1, 2)))
    window = {**HOST["access"], "in_flight": 1, "transaction_bytes": 8}  # 8 B each 2 s
    few = option(8, "host", tables=["host"], host={**HOST, "access": window}).lookup
    assert few is not None
    assert few.lines[0] == Line(F(2), F(6))
    alone = option(1).lookup
    assert alone is not None
    assert alone.lines == ()


def test_both_places_of_tables_are_compared_where_a_host_is_given() -> None:
    found = built(sizes=[8], host=HOST).options
    assert [(o.tables, o.is_asked) for o in found] == [("hbm", True), ("host", False)]
    found = built(sizes=[8], host=HOST, tables=["host"]).options
    assert [(o.tables, o.is_asked) for o in found] == [("hbm", False), ("host", True)]
    assert [o.tables for o in built(sizes=[8]).options] == ["hbm"]


def test_a_model_without_experts_or_tables() -> None:
    """Everything is on every card, and nothing is sent."""
    found = built(DENSE, sizes=[1, 4])
    assert [(o.size, o.tables) for o in found.options] == [(1, "none"), (4, "none")]
    for o in found.options:
        assert (o.expert_bytes, o.table_bytes, o.experts, o.exchanges, o.lookup) == (
            *(0, 0, (), ()),
            None,
        )
    split = built(DENSE, sizes=[4], attention_tp=[2]).options[0]
    assert [e.name for e in split.exchanges] == ["attention", "ffn"]


def test_sizes_and_limits_of_the_whole() -> None:
    """Divisors of 12; capacity is a fraction of memory, rounded down, and buffers add up."""
    document = instance(num_cards=12, compute_format="fp8", step_target_s="50ms")
    document["runtime"] = {
        "workspace_bytes": 700,
        "collective_buffer_bytes": 20,
        "migration_bytes": 3,
        "usable_memory_fraction": "0.33333",
    }
    found = supernode_problem(parse_instance(document))
    assert [o.size for o in found.options] == [1, 2, 3, 4, 6, 12]
    assert (found.num_cards, found.capacity_bytes, found.workspace_bytes) == (12, 33_333, 723)
    assert (found.peak_flops_per_s, found.step_target_s) == (2 * 10**6, F(1, 20))
    assert built().num_cards == 32
    assert built().peak_flops_per_s == 10**6


def test_sessions_are_followed_where_they_count() -> None:
    assert built().demands == ()
    cost = built(goal="cost_per_on_time_session", price_per_card_hour="2/h")
    assert (len(cost.demands), cost.min_on_time, cost.price_per_card_hour) == (1, 9, 2)
    document = instance()
    document["workload"]["cohorts"][0]["deadline_s"] = 7
    document["workload"]["min_on_time_fraction"] = "50%"
    timed = supernode_problem(parse_instance(document))
    assert (timed.demands[0].deadline_s, timed.min_on_time) == (7, 5)


def test_kv_is_that_of_the_longest_session_when_it_ends() -> None:
    document = instance(sizes=[8])
    longer = {**document["workload"]["cohorts"][0], "name": "longer", "new_tokens": 17}
    document["workload"]["cohorts"].append(longer)
    (found,) = supernode_problem(parse_instance(document)).options
    assert found.session_bytes == 2 * option(8).session_bytes


SECTION_RULES: list[tuple[Document, str, tuple[str, ...]]] = [
    ({"sizes": [8, 5], "num_cards": 32}, "supernode", ("5 cards do not divide", "2 left over")),
    ({"sizes": [5]}, "supernode.sizes", ("must divide the 32 cards",)),
    ({"num_cards": 64}, "supernode.num_cards", ("has 32 cards",)),
    ({"sizes": [8, 8]}, "supernode.sizes", ("once",)),
    ({"step_target_s": 0}, "supernode.step_target_s", ("0",)),
    ({"tables": ["host"]}, "supernode", ("need supernode.host",)),
    ({"tables": ["rom"]}, "supernode.tables[0]", ("hbm",)),
    ({"tables_with": ["projektion"]}, "supernode.tables_with", ("no such component",)),
    ({"attention_tp": [3]}, "supernode.attention_tp", ("4 query heads", "TP3")),
    ({"attention_tp": [4], "sizes": [2]}, "supernode.attention_tp", ("divides none",)),
    ({"between": {"alpha_s": 1, "bandwidth_bytes_per_s": 1}}, "supernode", ("domain_cards",)),
    ({"price_per_card_hour": "2/h"}, "supernode", ("cost_per_on_time_session",)),
    ({"compute_format": "fp4"}, "supernode.compute_format", ("no known peak", "'fp4'")),
    ({"goal": "speed"}, "supernode.goal", ("tokens_per_s_per_card",)),
    ({"host": {**HOST, "max_reads_per_s": 0}}, "supernode.host.max_reads_per_s", ("0",)),
]


@pytest.mark.parametrize(("section", "field", "words"), SECTION_RULES)
def test_sections_that_are_refused(section: Document, field: str, words: tuple[str, ...]) -> None:
    built()
    refused(instance(**section), field, *words)


@pytest.mark.parametrize("field", ["tables", "tables_with", "host"])
def test_a_model_without_tables_has_no_place_for_them(field: str) -> None:
    value = {"tables": ["hbm"], "tables_with": ["norms"], "host": HOST}[field]
    refused(instance(DENSE, **{field: value}), f"supernode.{field}", "no lookup tables")


COHORT = "workload.cohorts[0]"
OTHER_RULES: list[tuple[str, Any, str, str]] = [
    ("workload.cohorts.0.context_tokens", 0, f"{COHORT}.context_tokens", "need a context"),
    ("workload.cohorts.0.prompt_tokens", 5, f"{COHORT}.prompt_tokens", "from the start"),
    ("workload.cohorts.0.release_s", 5, f"{COHORT}.release_s", "from the start"),
    ("workload.routing", "spread", "workload.routing", "'expected' or 'balanced'"),
    ("workload.expert_counts", [1] * 6, "workload.expert_counts", "'expected' or 'balanced'"),
    ("runtime.count_activations", True, "runtime.count_activations", "workspace_bytes"),
]


@pytest.mark.parametrize(("path", "value", "field", "rule"), OTHER_RULES)
def test_instances_that_are_refused(path: str, value: Any, field: str, rule: str) -> None:
    document = instance()
    *parents, last = path.split(".")
    node: Any = document
    for part in parents:
        node = node[int(part) if part.isdecimal() else part]
    node[last] = value
    refused(document, field, rule)


def test_domains_and_pools_that_do_not_do() -> None:
    document = instance(domain_cards=4)
    document["fleet"]["pools"][0]["fabric_between"] = None
    refused(document, "supernode.domain_cards", "fabric_between")
    document["supernode"]["sizes"] = [2, 4]
    assert supernode_problem(parse_instance(document))
    document = instance()
    document["fleet"]["pools"].append({**document["fleet"]["pools"][0], "name": "second"})
    refused(document, "fleet.pools", "one pool")
    document = instance(goal="user_rate")
    document["workload"]["cohorts"][0]["deadline_s"] = 7
    refused(document, f"{COHORT}.deadline_s", "single session")


def test_more_options_than_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimizer.supernode.building.MAX_OPTIONS", 6)
    assert len(built().options) == 6
    refused(instance(host=HOST), "supernode.sizes", "12 options")


def test_the_examples_are_read_from_files(tmp_path: Path) -> None:
    document = json.loads(example_text("v41-supernode-size"))
    document["supernode"]["sizes"] = [8, 48]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=r"must divide the 256 cards \(16 left over\)"):
        supernode_problem(load_instance(str(path)))
