"""Parallel degrees, and which of them a model allows (sections 1 and 3)."""

from __future__ import annotations

from dataclasses import dataclass

from instances.model import ModelSpec


@dataclass(frozen=True, slots=True, order=True)
class ParallelConfig:
    """Degrees of data, pipeline, tensor, context and expert parallelism; `sp` shares TP's cards."""

    dp: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    sp: int = 1

    @property
    def num_cards(self) -> int:
        """Cards of one serving instance: DP·PP·TP·CP (EP and SP use the same cards)."""
        return self.dp * self.pp * self.tp * self.cp

    def label(self) -> str:
        """Return the degrees above one, such as "TP8" or "TP4·PP2"; "TP1" when all are one."""
        names = ("dp", "pp", "tp", "cp", "ep", "sp")
        parts = [f"{n.upper()}{getattr(self, n)}" for n in names if getattr(self, n) > 1]
        return "·".join(parts) if parts else "TP1"


@dataclass(frozen=True, slots=True)
class HeadRule:
    """A tensor-parallel degree that the model's heads refuse."""

    rule: str
    amount: int
    message: str


def check_heads(model: ModelSpec, tp: int) -> HeadRule | None:
    """Return the rule that `tp` breaks, or None.

    A head is atomic (section 1): `tp` must divide the query heads, and one of `tp` and the number
    of KV heads must divide the other. The feed-forward width and the vocabulary are padded up.
    """
    if tp < 1:
        return HeadRule("heads", 1 - tp, f"TP{tp} is not a degree; the least is 1")
    if model.num_heads % tp:
        left = model.num_heads % tp
        return HeadRule(
            "heads",
            left,
            f"{model.num_heads} query heads do not divide by TP{tp} ({left} left over)",
        )
    kv, larger, smaller = (
        model.num_kv_heads,
        max(model.num_kv_heads, tp),
        min(model.num_kv_heads, tp),
    )
    if larger % smaller:
        return HeadRule(
            "kv_heads",
            larger % smaller,
            f"{kv} KV heads and TP{tp}: neither divides the other "
            f"({larger} mod {smaller} = {larger % smaller})",
        )
    return None


def legal_tp(model: ModelSpec, max_tp: int) -> tuple[int, ...]:
    """Return the tensor-parallel degrees up to `max_tp` that the model's heads allow, ascending."""
    top = min(max_tp, model.num_heads)
    return tuple(tp for tp in range(1, top + 1) if check_heads(model, tp) is None)
