"""What holds of every split of every model: bytes on cards, their totals, work, times of steps.

Models have one or two makes of layers with odd sizes and formats, so that padding and rounding
happen; configurations are any that the textbook's rules allow.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from instances import Instance, parse_instance
from instances.ffn import MoeFfn
from instances.model import ModelSpec
from instances.tensors import StatePart
from optimizer.ledger import build_ledger
from optimizer.legality import check_config, legal_tp
from optimizer.operators import expert_parameters
from optimizer.ownership import session_bytes, stage_places, stage_weight_bytes
from optimizer.parallel import ParallelConfig
from optimizer.plan import CardId, Footprint, Plan, ServingInstance
from optimizer.routing import ROUTING_POLICIES
from optimizer.steps import decode_step
from optimizer.work import StageWork, StepLoad, stage_work, sum_read_entries

F = Fraction
quick = settings(max_examples=200, deadline=None, database=None, derandomize=True)
sizes = st.integers(1, 40)
few = st.integers(1, 3)
lengths = st.integers(0, 50)


@st.composite
def attentions(draw: st.DrawFn) -> dict[str, Any]:
    """Draw grouped-query, windowed, latent or linear attention."""
    kind = draw(st.sampled_from(["gqa", "gqa", "window", "mla", "linear"]))
    kv_heads, group = draw(st.sampled_from([1, 2, 4, 4, 3])), draw(st.sampled_from([1, 2, 4]))
    heads = kv_heads * group
    if kind == "mla":
        names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return {"kind": "mla", "num_heads": heads, **{name: draw(sizes) for name in names}}
    if kind == "linear":
        counts = {"num_key_heads": kv_heads, "num_value_heads": heads}
        dims = {"key_head_dim": draw(few), "value_head_dim": draw(few)}
        return {"kind": "linear", "conv_kernel": 4, **counts, **dims}
    window = draw(st.integers(1, 20)) if kind == "window" else None
    return {
        "kind": "gqa",
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": draw(few),
        "window": window,
        "qk_norm": draw(st.booleans()),
        "qkv_bias": draw(st.booleans()),
        "sinks": draw(st.booleans()),
    }


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a mixture of experts."""
    experts = draw(st.sampled_from([2, 4, 6, 8, 12]))
    return {
        "kind": "moe",
        "num_experts": experts,
        "experts_per_token": draw(st.integers(1, min(experts, 4))),
        "expert_size": draw(sizes),
        "expert_bias": draw(st.booleans()),
        "num_shared_experts": draw(st.integers(0, 1)),
        "latent_size": draw(st.none() | sizes),
    }


@st.composite
def models(draw: st.DrawFn, is_sparse: bool | None = None) -> ModelSpec:
    """Draw a model of two to six layers; `is_sparse` settles whether there are experts."""
    dense = st.fixed_dictionaries({"kind": st.just("dense"), "size": sizes})
    kinds = [dense] if is_sparse is False else [mixtures()] if is_sparse else [dense, mixtures()]
    marks = draw(st.lists(st.integers(0, 1), min_size=2, max_size=6))
    groups = [
        {
            "name": f"make {mark}",
            "layers": [layer for layer, other in enumerate(marks) if other == mark],
            "attention": draw(attentions()),
            "ffn": draw(st.one_of(kinds)),
        }
        for mark in sorted(set(marks))
    ]
    number = draw(st.sampled_from(["bf16", "fp8", "fp4"]))
    scaled = {"number": number, "scale": {"number": "fp8", "block": [1, 1]}}
    return ModelSpec.model_validate(
        {
            "name": "drawn",
            "hidden_size": draw(sizes),
            "vocab_size": draw(sizes),
            "tied_embeddings": draw(st.booleans()),
            "residual_streams": draw(st.integers(1, 2)),
            "groups": groups,
            "formats": {"weights": scaled if draw(st.booleans()) else number},
        }
    )


@st.composite
def configs(draw: st.DrawFn, model: ModelSpec) -> ParallelConfig:
    """Draw a legal configuration of one stage, with spare experts where groups need them."""
    tp = draw(st.sampled_from(legal_tp(model, 8)))
    has_cache = any(not part.is_fixed for parts in model.layer_state for part in parts)
    dcp = draw(st.sampled_from([1, 1, 2])) if has_cache else 1
    cp, copies = draw(few), draw(st.sampled_from([1, 1, 2]))
    dp = draw(few) if model.is_moe else 1
    cards = tp * cp * dp * copies
    ep = draw(st.sampled_from([d for d in range(1, cards + 1) if cards % d == 0]))
    ffns = [group.ffn for group in model.groups if isinstance(group.ffn, MoeFfn)]
    spare = {-ffn.num_experts % ep for ffn in ffns}
    config = ParallelConfig(
        dp=dp,
        tp=tp,
        cp=cp,
        dcp=dcp,
        copies=copies,
        ep=ep if model.is_moe else 1,
        redundant=max(spare, default=0),
    )
    assume(not check_config(model, config))
    return config


def cuts(model: ModelSpec) -> st.SearchStrategy[tuple[int, ...]]:
    """Return ways to cut the layers into stages of one layer or more."""
    marks = st.sets(st.integers(1, model.num_layers - 1))
    return marks.map(
        lambda inner: tuple(
            end - start
            for start, end in zip(
                [0, *sorted(inner)], [*sorted(inner), model.num_layers], strict=True
            )
        )
    )


def card_bytes(model: ModelSpec, config: ParallelConfig) -> int:
    return stage_weight_bytes(model, config, stage_places(model, ())[0])


def cache_bytes(model: ModelSpec, config: ParallelConfig, tokens: int) -> int:
    return session_bytes(model, config, stage_places(model, ())[0], tokens)


#: What more cards along a split are: k times the degree, the others as they were. Groups of experts
#: are as many as before, or grow with their cards; EP itself adds none and cuts experts less.
GROWTH: dict[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp",),
    "ep": ("ep",),
    "tp and ep": ("tp", "ep"),
    "dp and ep": ("dp", "ep"),
    "copies and ep": ("copies", "ep"),
}


@settings(quick, max_examples=300)
@given(st.data(), st.sampled_from([*GROWTH, "tp", "tp", "tp"]), st.sampled_from([2, 2, 3, 4]))
def test_more_cards_along_a_split_leave_no_card_with_more(
    data: st.DataObject, split: str, factor: int
) -> None:
    """No part of a tensor grows when more cards cut it, nor when fewer experts are held whole.

    Spare experts are left out: groups that do not divide them need more slots the more there are.
    """
    model = data.draw(models(is_sparse=True if {"dp", "ep"} & set(GROWTH[split]) else None))
    before = data.draw(configs(model))
    assume(not before.redundant)
    after = replace(before, **{name: factor * getattr(before, name) for name in GROWTH[split]})
    assume(not check_config(model, after))
    less = card_bytes(model, after) < card_bytes(model, before)
    event(f"{split}: {'less' if less else 'as much'}")
    assert card_bytes(model, after) <= card_bytes(model, before)
    for tokens in (0, 1, 37):
        assert cache_bytes(model, after, tokens) <= cache_bytes(model, before, tokens)


@quick
@given(st.data(), lengths)
def test_dealing_out_tokens_leaves_no_card_with_more_of_a_session(
    data: st.DataObject, tokens: int
) -> None:
    """CP and DCP divide entries between cards; the fullest one has those left over."""
    model = data.draw(models())
    config = replace(data.draw(configs(model)), cp=1, dcp=1, ep=1, redundant=0)
    whole = cache_bytes(model, config, tokens)
    for degree in (2, 3):
        dealt = cache_bytes(model, replace(config, cp=degree), tokens)
        assert dealt <= whole <= degree * dealt
        assert dealt == cache_bytes(model, replace(config, dcp=degree), tokens)


@quick
@given(st.data())
def test_a_finer_cut_leaves_no_stage_with_more_than_the_one_it_was_cut_from(
    data: st.DataObject,
) -> None:
    """A cut refines another if each of its stages lies within one of the other's."""
    model = data.draw(models())
    config, coarse = data.draw(configs(model)), data.draw(cuts(model))
    fine: list[int] = []
    for count in coarse:
        first = data.draw(st.integers(1, count))
        fine += [first, count - first] if first < count else [count]
    before = stage_places(model, coarse)
    for place in stage_places(model, fine):
        (origin,) = [other for other in before if place.layers[0] in other.layers]
        assert place.layers[-1] in origin.layers
        size = stage_weight_bytes(model, replace(config, pp=len(fine)), place)
        assert size <= stage_weight_bytes(model, replace(config, pp=len(coarse)), origin)


@quick
@given(st.data())
def test_stages_together_hold_and_do_what_one_stage_would(data: st.DataObject) -> None:
    """But for a tied embedding, which the last stage of several holds again as its head."""
    model = data.draw(models())
    config, cut = data.draw(configs(model)), data.draw(cuts(model))
    places, (whole,) = stage_places(model, cut), stage_places(model, ())
    held = sum(stage_weight_bytes(model, config, place) for place in places)
    again = model.tied_embeddings and len(cut) > 1
    rows = -(-model.vocab_size // config.tp)
    assert held == card_bytes(model, config) + again * rows * model.hidden_size * 2
    load = StepLoad(2, 9, roofline="operator")
    works = [stage_work(model, config, place, load) for place in places]
    one = stage_work(model, config, whole, load)
    assert totals(*works) == totals(one)
    for tokens in (0, 11):
        kept = sum(session_bytes(model, config, place, tokens) for place in places)
        assert kept == cache_bytes(model, config, tokens)


def totals(*works: StageWork) -> tuple[Fraction, Fraction, Fraction]:
    """Return FLOP, bytes read and bytes of messages of all stages after 11 tokens."""
    operators = [(o.times, *o.at(11)) for work in works for o in work.operators]
    messages = [e.times * e.message_bytes for work in works for e in work.exchanges]
    flops = sum((times * done for times, done, _ in operators), F(0))
    return flops, sum((times * read for times, _, read in operators), F(0)), sum(messages, F(0))


def problem(model: ModelSpec, num_cards: int, **changes: Any) -> Instance:
    """Return one server of round numbers on which sessions of the model run."""
    card = {
        "name": "card",
        "memory_bytes": 10**9,
        "memory_bandwidth_bytes_per_s": "1000B/s",
        "peak_flops_per_s": dict.fromkeys(("bf16", "fp8", "fp4"), "3000FLOP/s"),
    }
    fabric = {"name": "f", "alpha_s": "1s", "bandwidth_bytes_per_s": "100B/s"}
    server = {"name": "s", "accelerator": card, "num_cards": num_cards, "fabric": fabric}
    cohort = {"name": "c", "num_sessions": 1, "context_tokens": 5, "new_tokens": 3}
    document = {
        "name": "drawn",
        "model": model.model_dump(mode="json"),
        "fleet": {"pools": [{"name": "p", "server": server, "num_servers": 1}]},
        "workload": {"cohorts": [cohort], **changes.pop("workload", {})},
        "objective": {"minimise": "makespan"},
    }
    return parse_instance(document | changes)


@quick
@given(st.data())
def test_the_ledger_explains_every_byte_beyond_one_copy(data: st.DataObject) -> None:
    """All cards hold one copy and what the ledger lists as held again, padded or spare."""
    model = data.draw(models())
    cut = data.draw(cuts(model))
    config = replace(data.draw(configs(model)), pp=len(cut))
    cards = tuple(CardId(0, card) for card in range(config.num_cards))
    serving = ServingInstance("p", config, "ring", cards, stages=cut)
    ledger = build_ledger(problem(model, len(cards)), Plan((serving,)))
    (account,) = ledger.instances
    assert account.is_balanced
    assert all(listed.num_bytes > 0 for listed in account.duplications)
    event(f"{min(len(account.duplications), 5)} duplications or more")
    places = stage_places(model, cut)
    by_stage = [stage_weight_bytes(model, config, place) for place in places]
    assert account.held_bytes == config.stage_cards * sum(by_stage)
    for card in ledger.cards:
        assert card.weights_bytes == by_stage[card.place.stage]


@quick
@given(st.data(), st.integers(1, 9), st.sampled_from(ROUTING_POLICIES))
def test_the_busiest_expert_group_has_the_average_or_more(
    data: st.DataObject, sessions: int, routing: Any
) -> None:
    """No policy, nor any counts, loses work: a step follows the busiest group (section 6.3.2)."""
    model = data.draw(models(is_sparse=True))
    config, (place,) = data.draw(configs(model)), stage_places(model, ())
    counts = None
    if data.draw(st.booleans()) and len(model.groups) == 1:
        experts = next(g.ffn.num_experts for g in model.groups if isinstance(g.ffn, MoeFfn))
        rows = st.lists(st.integers(0, 9), min_size=experts, max_size=experts)
        counts = tuple(data.draw(rows.filter(any)))
    load = StepLoad(sessions, routing=routing, expert_counts=counts, roofline="operator")
    found = [o for o in stage_work(model, config, place, load).operators if o.name == "experts"]
    for operator, index in zip(found, sorted(set(model.group_of_layer)), strict=True):
        ffn = model.groups[index].ffn
        assert isinstance(ffn, MoeFfn)
        assignments = sessions * config.dp * ffn.experts_per_token
        numbers = expert_parameters(model.layer_tensors[index])
        assert operator.flops * config.stage_cards >= 2 * assignments * numbers


@quick
@given(st.data(), st.integers(1, 30), lengths, st.sampled_from(["zigzag", "contiguous"]))
def test_the_busiest_card_of_a_prompt_attends_to_its_share_or_more(
    data: st.DataObject, tokens: int, before: int, split: Any
) -> None:
    model = data.draw(models())
    config, (place,) = data.draw(configs(model)), stage_places(model, ())
    load = StepLoad(0, 0, tokens, before, split, roofline="operator")
    alone = replace(config, cp=1, ep=1, dp=1, copies=1, redundant=0)
    many = stage_work(model, config, place, load).operators
    one = stage_work(model, alone, place, load).operators
    for busiest, whole in zip(many, one, strict=True):
        if busiest.name == "attention":
            assert config.cp * busiest.flops >= whole.flops


@settings(quick, max_examples=150)
@given(
    st.data(),
    st.integers(1, 5),
    st.sampled_from(ROUTING_POLICIES),
    st.sampled_from(["step", "operator"]),
    st.integers(1, 3),
)
def test_no_step_gets_faster_with_more_context_or_more_sessions(
    data: st.DataObject, batch: int, routing: str, roofline: str, micro_batches: int
) -> None:
    """Entries, tokens, messages and assignments only grow, and so does the longest of them."""
    model = data.draw(models())
    cut = data.draw(cuts(model))
    config = replace(data.draw(configs(model)), pp=len(cut))
    instance = problem(
        model, config.num_cards, workload={"routing": routing}, runtime={"roofline": roofline}
    )
    how = Footprint("p", config, 1, "ring", cut, batch, micro_batches)
    pool, more = instance.fleet.pools[0], data.draw(st.integers(1, 4))
    now = decode_step(instance, pool, how)
    wider = decode_step(instance, pool, replace(how, batch=batch + more))
    deeper = decode_step(instance, pool, replace(how, micro_batches=micro_batches + more))
    times = [now.at(tokens) for tokens in (*range(30), 100)]
    assert times == sorted(times)
    for tokens in (0, 1, 13, 100):
        assert now.at(tokens) <= wider.at(tokens)
        assert now.at(tokens) <= deeper.at(tokens)


@settings(quick, max_examples=300)
@given(
    st.builds(
        StatePart,
        component=st.just("c"),
        entry_bytes=st.just(1),
        tokens_per_entry=st.integers(1, 5),
        window=st.none() | st.integers(1, 20),
        max_read_entries=st.none() | st.integers(1, 6),
        is_fixed=st.booleans(),
    ),
    lengths,
    lengths,
)
def test_entries_read_over_many_steps_are_the_sum_over_each(
    part: StatePart, first: int, count: int
) -> None:
    spelled = sum(part.read_entries(tokens) for tokens in range(first, first + count))
    assert sum_read_entries(part, first, count) == spelled
