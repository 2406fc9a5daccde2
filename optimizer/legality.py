"""Which splits a model and an engine allow: one rule each, with an id and numbers (sections 1, 3).

Atoms (heads, groups) are never cut. What else must divide depends on the engine's profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from instances.engine import TEXTBOOK, EngineProfile
from instances.ffn import MoeFfn
from instances.formats import WHOLE_AXIS
from instances.model import ModelSpec
from instances.tensors import Tensor
from optimizer.parallel import ParallelConfig

#: An engine that refuses nothing but what has no meaning, such as half a head.
LENIENT = EngineProfile(name="lenient", whole_blocks=False)

#: Ids of the rules about atoms that have a short name; the others are named after their atoms.
_RULES = {"query heads": "heads", "FFN columns": "ffn", "vocabulary rows": "vocabulary"}


@dataclass(frozen=True, slots=True)
class Rule:
    """A broken rule: its id, by how much in `unit`, and what does not fit."""

    rule: str
    amount: int
    unit: str
    message: str


def _split_tensors(model: ModelSpec, with_experts: bool = True) -> Iterator[Tensor]:
    """Yield the tensors of the decoder itself that are cut, vocabulary last."""
    for tensors in model.layer_tensors:
        for tensor in tensors:
            if tensor.split != "copy" and (with_experts or not tensor.is_expert):
                yield tensor
    yield from (tensor for tensor in model.final_tensors if tensor.split != "copy")
    yield model.embedding


def _check_atoms(tensor: Tensor, degree: int, name: str, engine: EngineProfile) -> Rule | None:
    """A degree divides the atoms; replicable ones may also divide it, padded ones need not."""
    units, unit = _atoms(tensor, engine), tensor.unit
    rule = _RULES.get(unit, unit.replace(" ", "_").lower())
    left = units % degree
    if not left:
        return None
    if tensor.is_replicable:
        larger, smaller = max(units, degree), min(units, degree)
        if larger % smaller:
            return Rule(
                rule,
                larger % smaller,
                unit,
                f"{units} {unit} and {name}: neither divides the other "
                f"({larger} mod {smaller} = {larger % smaller})",
            )
        if engine.replicates_kv_heads:
            return None
        return Rule(
            "kv_replication",
            degree - units,
            unit,
            f"{name} exceeds {units} {unit} and {engine.name} does not replicate them",
        )
    if tensor.is_padded and _pads_axis(tensor, engine):
        return None
    return Rule(rule, left, unit, f"{units} {unit} do not divide by {name} ({left} left over)")


def _atoms(tensor: Tensor, engine: EngineProfile) -> int:
    """Atoms to cut: of the vocabulary the rows it is padded to before it is cut."""
    multiple = engine.vocabulary_multiple
    if tensor.role != "vocabulary" or multiple is None or engine.pads_vocabulary_per_card:
        return tensor.units
    return -(-tensor.units // multiple) * multiple


def _pads_axis(tensor: Tensor, engine: EngineProfile) -> bool:
    """Whether an engine pads each card's part of the cut axis, so that any degree will do."""
    if tensor.role == "vocabulary":
        return engine.vocabulary_multiple is not None and engine.pads_vocabulary_per_card
    return engine.pads_ffn


def _check_blocks(model: ModelSpec, tensor: Tensor, degree: int, name: str) -> Rule | None:
    """A card's part of a quantised matrix is whole scale blocks along the axis that is cut."""
    scale = tensor.format_in(model.formats).scale
    if scale is None or degree == 1:
        return None
    axis = 0 if tensor.split == "outputs" else 1
    block, size = scale.block[axis], (tensor.outputs, tensor.inputs)[axis]
    parts = min(degree, tensor.units) if tensor.is_replicable else degree
    if block == 1 or block >= WHOLE_AXIS or size % (parts * block) == 0:
        return None
    left = size % (parts * block)
    each = f"{size // parts}" if size % parts == 0 else f"{size / parts:.4g}"
    return Rule(
        "quantisation_block",
        left,
        "numbers",
        f"{tensor.component}: {size} over {name} is {each} a card, "
        f"{size / parts / block:.5g} blocks of {block}; blocks must be whole",
    )


def _first_broken(
    model: ModelSpec,
    degree_of: Callable[[Tensor], tuple[int, str]],
    engine: EngineProfile,
    with_experts: bool = True,
) -> Rule | None:
    tensors = list(_split_tensors(model, with_experts))
    for tensor in sorted(tensors, key=lambda t: (t.is_padded, t.is_replicable)):
        degree, name = degree_of(tensor)
        broken = _check_atoms(tensor, degree, name, engine)
        if broken is not None:
            return broken
    if not engine.whole_blocks:
        return None
    for tensor in tensors:
        broken = _check_blocks(model, tensor, *degree_of(tensor))
        if broken is not None:
            return broken
    return None


def check_tp(
    model: ModelSpec, tp: int, engine: EngineProfile = TEXTBOOK, with_experts: bool = True
) -> Rule | None:
    """Return the rule that tensor parallelism of degree `tp` breaks, or None.

    It is plain tensor parallelism, which cuts experts as well, unless `with_experts` is false.

    Query heads and output groups are atoms that `tp` must divide; one of `tp` and the KV heads must
    divide the other; widths, vocabulary and scale blocks are the engine's affair.
    """
    if tp < 1:
        return Rule("heads", 1 - tp, "heads", f"TP{tp} is not a degree; the least is 1")
    return _first_broken(model, lambda tensor: (tp, f"TP{tp}"), engine, with_experts)


def moe_ffns(model: ModelSpec) -> tuple[MoeFfn, ...]:
    """Return the mixtures of experts of a model, group by group."""
    return tuple(group.ffn for group in model.groups if isinstance(group.ffn, MoeFfn))


def redundant_needed(model: ModelSpec, ep: int) -> int:
    """Fewest spare expert slots, one number for all layers, that make expert groups equal.

    Layers with different numbers of experts may need different ones; then none is legal.
    """
    return max((-ffn.num_experts % ep for ffn in moe_ffns(model)), default=0)


def check_ep(
    model: ModelSpec, ep: int, engine: EngineProfile = TEXTBOOK, redundant: int | None = None
) -> Rule | None:
    """Return the rule that `ep` expert groups break, or None.

    Experts with the redundant ones must divide by `ep` (section 3); `redundant` None stands for the
    fewest that the engine needs.
    """
    if ep < 1:
        return Rule("experts", 1 - ep, "groups", f"EP{ep} is not a degree; the least is 1")
    if ep == 1 and not redundant:
        return None
    ffns = moe_ffns(model)
    if not ffns:
        if redundant and ep == 1:
            text = "the model has no experts that others could be added to"
            return Rule("experts", abs(redundant), "experts", text)
        return Rule("experts", ep - 1, "groups", f"EP{ep}: the model has no experts to deal out")
    for ffn in ffns:
        if redundant is None:
            spare = -ffn.num_experts % ep if engine.redundant_experts else 0
        else:
            spare = redundant
        if spare and not engine.redundant_experts:
            text = f"{engine.name} holds no redundant experts, {spare} asked for"
            return Rule("redundant_experts", spare, "experts", text)
        total = ffn.num_experts + spare
        if ffn.num_experts < ep or total % ep:
            left = total % ep or ep - ffn.num_experts
            extra = f" + {spare} redundant" if spare else ""
            return Rule(
                "experts",
                left,
                "experts",
                f"{ffn.num_experts}{extra} experts do not divide by EP{ep} ({left} left over)",
            )
    return None


def _check_widths(
    config: ParallelConfig, engine: EngineProfile, has_experts: bool
) -> Iterator[Rule]:
    """Degrees suit each other and the engine."""
    label, width = config.label(), config.stage_cards
    if width % config.ep:
        text = f"{label}: {width} cards of a stage do not form {config.ep} equal expert groups"
        yield Rule("moe_width", width % config.ep, "cards", text)
    elif not engine.free_ep and config.ep not in (1, width):
        text = f"{label}: {engine.name} deals experts to all {width} cards of a stage or to none"
        yield Rule("moe_width", width - config.ep, "cards", text)
    if config.sp not in (1, config.tp):
        text = f"{label}: SP shares TP's cards, so it is 1 or {config.tp}"
        yield Rule("sp", abs(config.sp - config.tp), "cards", text)
    if config.dp > 1 and config.tp > 1 and not engine.attention_dp_with_tp:
        text = f"{label}: {engine.name} runs attention data-parallel or tensor-parallel, not both"
        yield Rule("attention_dp", config.dp - 1, "groups", text)
    if config.dp > 1 and not has_experts:
        text = f"{label}: groups that share no experts are serving instances of their own"
        yield Rule("attention_dp", config.dp - 1, "groups", text)
    allowed = (
        ("attention_dp", config.dp, engine.attention_data_parallel),
        ("attention_copies", config.copies, engine.attention_copies),
        ("cp", config.cp, engine.context_parallel),
        ("dcp", config.dcp, engine.decode_context_parallel),
    )
    for rule, degree, is_allowed in allowed:
        if degree > 1 and not is_allowed:
            yield Rule(rule, degree - 1, "groups", f"{label}: {engine.name} does not run {rule}")


def _check_dcp(model: ModelSpec, config: ParallelConfig, engine: EngineProfile) -> Iterator[Rule]:
    """Cards that share out cached tokens would otherwise hold the same KV heads."""
    if config.dcp == 1 or config.tp < 1:
        return
    kept = [p.units for parts in model.layer_state for p in parts if not p.is_fixed]
    heads = max(kept, default=1)
    if engine.dcp_latents_only and heads > 1:
        text = f"{config.label()}: {engine.name} deals out latent caches only, not {heads} KV heads"
        yield Rule("dcp", heads - 1, "KV heads", text)
    for parts in model.layer_state:
        for part in parts:
            same = config.tp // min(config.tp, part.units)
            if not part.is_fixed and same % config.dcp:
                text = (
                    f"{config.label()}: {same} cards hold the same {part.component}; "
                    f"DCP{config.dcp} does not divide that"
                )
                yield Rule("dcp", same % config.dcp, "cards", text)
                return


def check_config(
    model: ModelSpec, config: ParallelConfig, engine: EngineProfile = TEXTBOOK
) -> list[Rule]:
    """Return every rule that a configuration breaks: degrees, heads, widths, experts, blocks."""
    degrees = (config.dp, config.pp, config.tp, config.cp, config.ep, config.sp, config.dcp)
    wrong = sum(degree < 1 for degree in (*degrees, config.copies)) + (config.redundant < 0)
    if wrong:
        text = f"{config}: degrees are at least 1, redundant experts at least 0"
        return [Rule("parallel", wrong, "degrees", text)]
    broken = list(_check_widths(config, engine, bool(moe_ffns(model))))
    if config.pp > model.num_layers:
        text = f"PP{config.pp} cannot cut {model.num_layers} layers"
        broken.append(Rule("stages", config.pp - model.num_layers, "stages", text))
    expert = check_ep(model, config.ep, engine, config.redundant)
    if expert is not None:
        broken.append(expert)
    if config.stage_cards % config.ep == 0:
        moe_tp = config.moe_tp

        def degree_of(tensor: Tensor) -> tuple[int, str]:
            if tensor.is_expert:
                return moe_tp, f"MoE TP{moe_tp}"
            return config.tp, f"TP{config.tp}"

        rule = _first_broken(model, degree_of, engine)
        if rule is not None:
            broken.append(rule)
    broken.extend(_check_dcp(model, config, engine))
    return broken


def legal_tp(
    model: ModelSpec, max_tp: int, engine: EngineProfile = TEXTBOOK, with_experts: bool = True
) -> tuple[int, ...]:
    """Return the tensor-parallel degrees up to `max_tp` that model and engine allow, ascending."""
    cut = _split_tensors(model, with_experts)
    atoms = [t.units for t in cut if not (t.is_padded or t.is_replicable)]
    degrees = range(1, min(max_tp, *atoms) + 1)
    return tuple(tp for tp in degrees if check_tp(model, tp, engine, with_experts) is None)


def legal_ep(model: ModelSpec, max_ep: int, engine: EngineProfile = TEXTBOOK) -> tuple[int, ...]:
    """Return the numbers of expert groups up to `max_ep` that are allowed, ascending."""
    max_ep = min(max_ep, max((ffn.num_experts for ffn in moe_ffns(model)), default=1))
    return tuple(ep for ep in range(1, max_ep + 1) if check_ep(model, ep, engine) is None)
