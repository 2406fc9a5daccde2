"""What one card computes, reads and sends in a step, operator by operator, against hand sums."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from instances.model import ModelSpec
from instances.tensors import StatePart
from optimizer.grids import (
    all_gather_sent_bytes,
    all_reduce_sent_bytes,
    reduce_scatter_sent_bytes,
)
from optimizer.operators import step_flops
from optimizer.ownership import stage_places
from optimizer.parallel import ParallelConfig
from optimizer.work import EntryWork, Operator, StageWork, StepLoad, stage_work, sum_read_entries

F = Fraction
GQA: dict[str, Any] = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2, "head_dim": 2}
MLA: dict[str, Any] = {
    "kind": "mla",
    "num_heads": 4,
    "q_lora_rank": 4,
    "kv_lora_rank": 6,
    "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 2,
    "v_head_dim": 2,
}
LINEAR: dict[str, Any] = {
    "kind": "linear",
    "num_key_heads": 2,
    "num_value_heads": 4,
    "key_head_dim": 2,
    "value_head_dim": 2,
    "conv_kernel": 4,
}
DENSE: dict[str, Any] = {"kind": "dense", "size": 16}
MOE: dict[str, Any] = {
    "kind": "moe",
    "num_experts": 4,
    "experts_per_token": 2,
    "expert_size": 4,
}


def tiny(
    attention: dict[str, Any] = GQA, ffn: dict[str, Any] = DENSE, layers: int = 2, **fields: Any
) -> ModelSpec:
    """Return layers of one make with a hidden vector of 8 numbers of 2 B and 32 tokens."""
    group = {"name": "all", "layers": list(range(layers)), "attention": attention, "ffn": ffn}
    document = {"name": "tiny", "hidden_size": 8, "vocab_size": 32, "groups": [group], **fields}
    return ModelSpec.model_validate(document)


#: In each of 2 layers q and o of 4 · 2 · 8 = 64 numbers, k and v of 32, an FFN of 3 · 8 · 16 = 384;
#: a head of 256; 2 · 2 heads · 2 · 2 B = 16 B of K and V a token and 4 · 4 · 2 = 32 FLOP to attend.
TINY = tiny()
#: One layer with four experts of 3 · 8 · 4 = 96 numbers, two for each token; a router of 32.
SPARSE = tiny(ffn=MOE, layers=1)
#: Three sessions in a step; the other two have 100 tokens each.
THREE = StepLoad(3, 100, roofline="operator")
PROMPT = StepLoad(0, prefill_tokens=8, roofline="operator")


def work_of(model: ModelSpec, load: StepLoad, **degrees: int) -> StageWork:
    """Return the work of a card of a single stage."""
    return stage_work(model, ParallelConfig(**degrees), stage_places(model, ())[0], load)


def done(work: StageWork, tokens: int = 11) -> dict[str, Any]:
    """Return times, FLOP and bytes of each operator with `tokens` tokens cached."""
    return {operator.name: (operator.times, *operator.at(tokens)) for operator in work.operators}


def sent(work: StageWork) -> list[Any]:
    return [(e.name, e.kind, e.ranks, e.block, e.message_bytes, e.times) for e in work.exchanges]


def attended(model: ModelSpec, load: StepLoad, tokens: int = 11, **degrees: int) -> Any:
    """Return FLOP and bytes of one layer's attention on a card."""
    return done(work_of(model, load, **degrees), tokens)["attention"][1:]


def test_a_dense_layer_on_two_cards_operator_by_operator() -> None:
    assert done(work_of(TINY, THREE, tp=2)) == {
        "attention_q": (2, 192, 64),  # 2 · 3 tokens · 32 numbers; 32 · 2 B
        "attention_k": (2, 96, 32),
        "attention_v": (2, 96, 32),
        "attention_o": (2, 192, 64),
        # One KV head each: 8 B and 16 FLOP an entry; 11 + 2 · 100 = 211 entries.
        "attention": (2, 3376, 1688),
        "ffn": (2, 1152, 384),  # 2 · 3 · 192; 192 · 2 B
        "lm_head": (1, 768, 256),  # 2 · 3 · 128; 128 · 2 B
    }


def test_one_sum_per_step_adds_up_the_operators_of_two_cards() -> None:
    # 2 · (192 + 96 + 96 + 192 + 3376 + 1152) + 768; 2 · (64 + 32 + 32 + 64 + 1688 + 384) + 256
    assert done(work_of(TINY, replace(THREE, roofline="step"), tp=2)) == {"step": (1, 10976, 4784)}


def test_copied_kv_projections_are_worked_on_by_each_holder_but_not_in_the_ideal_sum() -> None:
    operators = done(work_of(TINY, THREE, tp=4))
    # Two KV heads on four cards: a head of 2 · 8 = 16 numbers each, where a quarter would be 8.
    assert operators["attention_k"] == operators["attention_v"] == (2, 96, 32)
    assert operators["attention_q"] == (2, 96, 32)
    # An entry is still a whole head of 8 B, but each card attends for one query head: 8 FLOP.
    assert operators["attention"] == (2, 211 * 8, 211 * 8)
    # (576 · 2 layers + 256) / 4 = 352 numbers: 2 · 3 · 352, and 352 · 2 B, with the 211 entries.
    ideal = done(work_of(TINY, replace(THREE, roofline="step"), tp=4))
    assert ideal == {"step": (1, 2112 + 2 * 1688, 704 + 2 * 1688)}


def test_a_dense_layer_adds_up_after_attention_and_after_its_ffn() -> None:
    # 3 tokens · 8 numbers · 2 B = 48 B.
    assert sent(work_of(TINY, THREE, tp=2)) == [
        ("attention", "all_reduce", 2, 2, 48, 2),
        ("ffn", "all_reduce", 2, 2, 48, 2),
    ]
    assert sent(work_of(TINY, THREE)) == []


def test_sequence_parallelism_scatters_sums_and_gathers_parts() -> None:
    work = work_of(TINY, THREE, tp=2, sp=2)
    assert sent(work) == [
        ("attention", "reduce_scatter", 2, 2, 48, 4),
        ("ffn", "reduce_scatter", 2, 2, 48, 4),
    ]
    halves = reduce_scatter_sent_bytes(2, 48) + all_gather_sent_bytes(2, 48)
    assert halves == all_reduce_sent_bytes(2, 48)


def test_experts_are_cut_by_tensor_parallelism() -> None:
    operators = done(work_of(SPARSE, StepLoad(roofline="operator"), tp=2))
    # One token, two experts, half of each (48 numbers) on a card: 2 · 2 · 48, and 2 · 48 · 2 B.
    assert operators["experts"] == (1, 192, 192)
    # The router is copied: 2 · 32 FLOP, 64 B.
    assert operators["router"] == (1, 64, 64)
    assert sent(work_of(SPARSE, StepLoad(), tp=2)) == [
        ("attention", "all_reduce", 2, 2, 16, 1),
        ("ffn", "all_reduce", 2, 2, 16, 1),
    ]


@pytest.mark.parametrize(
    ("routing", "flops", "read"),
    [
        # Two groups of two whole experts. Balanced: one of the two assignments each.
        ("balanced", 192, 192),
        ("spread", 192, 192),
        # Both in one group: 2 · 2 · 96, and two experts of 192 B.
        ("concentrated", 384, 384),
        # 4 · (1 - 1/2) = 2 distinct experts, one in each group.
        ("expected", 192, 192),
    ],
)
def test_a_step_takes_as_long_as_its_busiest_expert_group(
    routing: Any, flops: int, read: int
) -> None:
    load = StepLoad(routing=routing, roofline="operator")
    assert done(work_of(SPARSE, load, tp=2, ep=2))["experts"] == (1, flops, read)


def test_measured_counts_replace_the_routing() -> None:
    """Groups (6, 2) and (0, 4) of 12: the busiest gets 8/12 of a step's assignments, rounded up."""
    counts = replace(THREE, routing="concentrated", expert_counts=(6, 2, 0, 4))
    # 3 tokens · 2 = 6: 4 in the busiest, on both its experts: 2 · 4 · 96, 2 · 192 B.
    assert done(work_of(SPARSE, counts, tp=2, ep=2))["experts"] == (1, 768, 384)
    # One token: ceil(2 · 8 / 12) = 2.
    one = replace(counts, decode_sessions=1)
    assert done(work_of(SPARSE, one, tp=2, ep=2))["experts"] == (1, 384, 384)
    # A single assignment in the busiest group reads one expert: 2 · 3 / 12 rounded up.
    even = replace(one, expert_counts=(1, 2, 2, 1), decode_sessions=1)
    assert done(work_of(SPARSE, even, tp=2, ep=2))["experts"] == (1, 192, 192)
    # Three groups, with two spare slots: (6, 2), (0, 4), (nothing).
    spare = work_of(SPARSE, counts, dp=3, ep=3, redundant=2)
    # 3 · 3 tokens · 2 = 18 assignments: 12 in the first.
    assert done(spare)["experts"] == (1, 2 * 12 * 96, 384)


def test_redundant_experts_are_slots_of_the_groups() -> None:
    # 4 + 2 slots over three groups: 18 assignments, 6 in each group, on both its slots.
    work = work_of(SPARSE, THREE, dp=3, ep=3, redundant=2)
    assert done(work)["experts"] == (1, 2 * 6 * 96, 384)


@pytest.mark.parametrize(
    ("degrees", "exchanges"),
    [
        # A token (16 B) goes to the cards of its 2 experts, and on average 3/4 of those are others:
        # 3 · 2 · 16 · 3/4 = 72 B there, and as many back.
        ({"dp": 4, "ep": 4}, [("dispatch", "all_to_all", 4, 4, 72, 2)]),
        # Two groups of two cards that cut each expert: all four cards need every token, and three
        # of them do not have it: 3 · 3 · 16.
        ({"dp": 4, "ep": 2}, [("dispatch", "all_to_all", 4, 4, 144, 2)]),
        # Pairs of cards hold the same tokens and send half of them each, then tell each other.
        (
            {"dp": 2, "tp": 2, "ep": 4},
            [
                ("attention", "all_reduce", 2, 2, 48, 1),
                ("dispatch", "all_to_all", 4, 4, 36, 2),
                ("gather", "reduce_scatter", 2, 2, 48, 1),
            ],
        ),
        # Without expert groups all inputs are gathered and all outputs scattered: 12 · 16 B.
        ({"dp": 4}, [("dispatch", "reduce_scatter", 4, 4, 192, 2)]),
        # Two groups of two cards: 6 · 16 B, of which each card ends up with half its group's.
        (
            {"dp": 2, "tp": 2},
            [
                ("attention", "all_reduce", 2, 2, 48, 1),
                ("dispatch", "reduce_scatter", 4, 4, 96, 2),
                ("gather", "reduce_scatter", 2, 2, 48, 1),
            ],
        ),
        # Two copies of the attention, an expert group on each: the same tokens, so sums suffice.
        ({"copies": 2, "ep": 2}, [("experts", "all_reduce", 2, 2, 48, 1)]),
        # Each expert over two cards of four: first the parts, then the groups.
        (
            {"copies": 2, "tp": 2, "ep": 2},
            [
                ("attention", "all_reduce", 2, 2, 48, 1),
                ("experts", "all_reduce", 2, 2, 48, 1),
                ("experts", "all_reduce", 2, 4, 48, 1),
            ],
        ),
        (
            {"copies": 2, "tp": 2},
            [
                ("attention", "all_reduce", 2, 2, 48, 1),
                ("experts", "all_reduce", 4, 4, 48, 1),
            ],
        ),
    ],
)
def test_tokens_reach_their_experts(degrees: dict[str, int], exchanges: list[Any]) -> None:
    assert sent(work_of(SPARSE, THREE, **degrees)) == exchanges


def test_shared_experts_are_added_up_apart_where_tokens_are_sent_to_the_others() -> None:
    shared = tiny(ffn={**MOE, "num_shared_experts": 1}, layers=1)
    reduction = ("shared_experts", "all_reduce", 2, 2, F(48), 1)
    assert reduction in sent(work_of(shared, THREE, dp=2, tp=2, ep=4))
    assert reduction not in sent(work_of(shared, THREE, tp=2, ep=2))


def test_a_latent_is_sent_in_place_of_the_hidden_vector() -> None:
    # 6 numbers for 8: 72 · 6 / 8 = 54 B.
    latent = tiny(ffn={**MOE, "latent_size": 6}, layers=1)
    (exchange,) = sent(work_of(latent, THREE, dp=4, ep=4))
    assert exchange == ("dispatch", "all_to_all", 4, 4, 54, 2)


def test_attention_groups_share_their_experts() -> None:
    # 4 · 3 tokens · 2 = 24 assignments, 6 on each of four cards: 2 · 6 · 96 FLOP, one expert read.
    assert done(work_of(SPARSE, THREE, dp=4, ep=4))["experts"] == (1, 1152, 192)
    # Attention is a group's own: 211 entries of 16 B.
    assert attended(SPARSE, THREE, dp=4, ep=4) == (211 * 32, 211 * 16)


def test_context_parallel_decoding_merges_partial_softmaxes() -> None:
    # Half the entries on each of two groups: 211 · 8 B / 2; 32 FLOP over four cards.
    assert attended(TINY, THREE, cp=2, tp=2) == (211 * 8, 211 * 4)
    # 3 sessions · 4 heads · (2 + 2) numbers of 4 B, half of them on a card: 96 B.
    assert sent(work_of(TINY, THREE, cp=2, tp=2)) == [
        ("merge", "all_reduce", 2, 4, 96, 2),
        ("attention", "all_reduce", 2, 2, 48, 2),
        ("ffn", "all_reduce", 2, 2, 48, 2),
    ]


def test_a_context_parallel_prompt_passes_keys_and_values_round_a_ring() -> None:
    # Of 36 pairs 18 on each card in zigzag, but 26 on the second one in order (section 6.2.4).
    assert attended(TINY, PROMPT, cp=2) == (18 * 32, 8 * 16)
    assert attended(TINY, replace(PROMPT, cp_split="contiguous"), cp=2) == (26 * 32, 8 * 16)
    # A card works on 4 of 8 tokens, and passes on 4 entries of 16 B once.
    work = work_of(TINY, PROMPT, cp=2)
    assert done(work)["attention_q"] == (2, 2 * 4 * 64, 128)
    assert sent(work) == [("kv_ring", "send", 2, 2, 64, 2)]
    # After 4 tokens its 4 queries see those too, and the ring carries ceil(12 / 2) entries.
    later = replace(PROMPT, prefill_before=4)
    assert attended(TINY, later, cp=2) == ((18 + 16) * 32, 12 * 16)
    assert sent(work_of(TINY, later, cp=2)) == [("kv_ring", "send", 2, 2, 96, 2)]
    # Four cards in pairs: 3 sends of ceil(8 / 4) entries of one head, 8 B, in each layer.
    assert sent(work_of(TINY, PROMPT, cp=4, tp=2))[0] == ("kv_ring", "send", 4, 8, 16, 6)


def test_cards_with_the_same_heads_share_out_tokens_but_not_the_attending() -> None:
    # Two cards hold a KV head; each reads half its entries, 8 B / 2, for both query heads: 8 FLOP.
    assert attended(TINY, THREE, tp=4) == (211 * 8, 211 * 8)
    assert attended(TINY, THREE, tp=4, dcp=2) == (211 * 8, 211 * 4)
    # Both heads' partial results: 3 · 2 heads · 4 numbers · 4 B.
    assert sent(work_of(TINY, THREE, tp=4, dcp=2))[0] == ("merge", "all_reduce", 2, 4, 96, 2)
    # With CP they are merged within a TP group, then once more across, a head for each card.
    merges = [e for e in sent(work_of(TINY, THREE, tp=4, dcp=2, cp=2)) if e[0] == "merge"]
    assert merges == [("merge", "all_reduce", 2, 4, 96, 2), ("merge", "all_reduce", 2, 8, 48, 2)]


@pytest.mark.parametrize("degrees", [{}, {"tp": 4}, {"cp": 2, "tp": 2}, {"tp": 4, "dcp": 2}])
def test_all_cards_together_do_the_work_of_one(degrees: dict[str, int]) -> None:
    load = StepLoad(roofline="step")
    ((_, flops, _),) = done(work_of(TINY, load, **{**degrees, "cp": 1})).values()
    per_group = ParallelConfig(**degrees).tp * flops
    assert per_group == step_flops(TINY, 11)
    (one,) = work_of(TINY, load, **degrees).operators
    cards = ParallelConfig(**degrees).num_cards
    assert cards * one.entries[0].flops == 2 * 32


def test_a_latent_is_read_whole_by_every_card() -> None:
    # An entry is 6 + 2 numbers of 2 B; 2 · 4 heads · (8 + 6) = 112 FLOP, shared by the cards.
    assert attended(tiny(MLA), THREE) == (211 * 112, 211 * 16)
    assert attended(tiny(MLA), THREE, tp=2) == (211 * 56, 211 * 16)
    assert attended(tiny(MLA), THREE, tp=2, dcp=2) == (211 * 56, 211 * 8)
    # 4 heads · (6 + 2) numbers · 4 B · 3 sessions on 2 cards, twice as many as without DCP.
    assert sent(work_of(tiny(MLA), THREE, tp=2, dcp=2))[0][4] == 384


def test_a_window_and_an_index_bound_what_is_read() -> None:
    window = tiny({**GQA, "window": 4})
    for tokens, entries in ((0, 0), (3, 3), (4, 4), (1000, 4)):
        assert attended(window, StepLoad(roofline="operator"), tokens) == (
            32 * entries,
            16 * entries,
        )
    index = {"num_index_heads": 3, "index_head_dim": 4, "index_topk": 5}
    found = tiny({**MLA, **index})
    # Latents: 5 at most. Index keys of 4 · 2 B, 2 · 3 · 4 FLOP each: all of them.
    for tokens, entries in ((4, 4), (5, 5), (1000, 5)):
        assert attended(found, StepLoad(roofline="operator"), tokens) == (
            112 * entries + 24 * tokens,
            16 * entries + 8 * tokens,
        )


def test_compressed_entries_are_read_once_they_are_whole_up_to_a_limit() -> None:
    part = StatePart(component="c", entry_bytes=6, tokens_per_entry=4, max_read_entries=3)
    operator = Operator("attention", 1, F(1), F(2), (EntryWork(part, F(5), F(6)),))
    for tokens, entries in ((3, 0), (4, 1), (11, 2), (12, 3), (400, 3)):
        assert operator.at(tokens) == (F(1 + 5 * entries), F(2 + 6 * entries))
    # 9 … 13 tokens: 2, 2, 2, 3 and 3 entries.
    assert sum_read_entries(part, 9, 5) == 12
    assert sum_read_entries(part, 9, 0) == 0


def test_a_recurrent_state_is_read_whatever_the_context() -> None:
    model = tiny(LINEAR)
    states = {part.component: part for part in model.layer_state[0]}
    # 4 heads · 2 · 2 numbers of 4 B, and (2 · 4 + 8) · 4 taps of the convolution.
    assert states["recurrent_state"].entry_bytes == 64
    for tokens in (0, 11, 1000):
        flops, read = attended(model, THREE, tokens)
        assert read == 3 * sum(part.entry_bytes for part in states.values())
        assert (flops / 2, read / 2) == attended(model, THREE, tokens, tp=2)
        # CP deals out tokens, of which there are none here, and merges nothing.
        assert (flops, read) == attended(model, THREE, tokens, cp=2)
    assert sent(work_of(model, THREE, cp=2)) == []
    # A prompt updates the states with each token but reads them once.
    token_flops, read = attended(model, StepLoad(roofline="operator"))
    assert attended(model, PROMPT) == (8 * token_flops, read)


def test_decoding_and_a_prompt_may_share_a_step() -> None:
    both = replace(THREE, prefill_tokens=8, prefill_before=4)
    operators = done(work_of(TINY, both))
    # 3 + 8 tokens pass the layers; three sessions and the prompt's end need the head.
    assert operators["ffn"] == (2, 2 * 11 * 384, 768)
    assert operators["lm_head"] == (1, 2 * 4 * 256, 512)
    # 211 entries for decoding; 36 pairs and 8 · 4 before them for the prompt, of 12 entries.
    assert operators["attention"] == (2, (211 + 68) * 32, (211 + 12) * 16)
    assert sent(work_of(TINY, both, tp=2))[0] == ("attention", "all_reduce", 2, 2, 176, 2)


def test_every_card_of_a_stage_hands_on_what_it_holds() -> None:
    """PP4 x TP2 of 4096 numbers in BF16: both cards hold all 8 KiB, 16 KiB in all (section 3)."""
    model = tiny(layers=4, hidden_size=4096)
    config, places = ParallelConfig(pp=4, tp=2), stage_places(model, (1, 1, 1, 1))
    load = StepLoad()
    handed = [stage_work(model, config, place, load).handoff_bytes for place in places]
    assert [2 * size for size in handed] == [16 * 1024] * 3 + [0]
    sharded = stage_work(model, replace(config, sp=2), places[0], load)
    assert sharded.handoff_bytes == 4096
    wide = stage_work(tiny(layers=4, residual_streams=3), config, places[0], THREE)
    assert wide.handoff_bytes == 3 * 3 * 8 * 2


def test_only_the_last_stage_has_the_head() -> None:
    config, places = ParallelConfig(pp=2), stage_places(TINY, (1, 1))
    first, last = (done(stage_work(TINY, config, place, THREE)) for place in places)
    assert "lm_head" not in first
    assert last.pop("lm_head") == (1, 1536, 512)
    assert first == last
    assert first["ffn"] == (1, 2304, 768)
