"""Parallel degrees of a serving instance, and which cards form which group (section 3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ParallelConfig:
    """Degrees of one serving instance.

    A pipeline stage (`pp` of them) has dp·copies·cp·tp cards. `tp` cards share attention and dense
    FFNs; `cp` groups of them hold parts of every context; `copies` groups hold the attention of the
    same sessions again; `dp` groups hold it for sessions of their own. The experts of a stage are
    dealt to `ep` groups of its cards, `redundant` spare slots included; the cards of one such group
    cut each expert between them. `sp` (1 or tp) shards activations over TP's cards, `dcp` shares
    out the cached tokens over cards of a TP group that would hold the same ones.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    sp: int = 1
    dcp: int = 1
    copies: int = 1
    redundant: int = 0

    @property
    def stage_cards(self) -> int:
        """Cards of one pipeline stage."""
        return self.dp * self.copies * self.cp * self.tp

    @property
    def num_cards(self) -> int:
        """Cards of one serving instance: every degree but EP, SP and DCP, which share cards."""
        return self.pp * self.stage_cards

    @property
    def moe_tp(self) -> int:
        """Cards that cut each expert of their expert group between them."""
        return self.stage_cards // self.ep

    def label(self) -> str:
        """Return the degrees above one, such as "TP8" or "PP2·TP4"; "TP1" when all are one."""
        names = ("dp", "pp", "tp", "cp", "ep", "sp", "dcp")
        parts = [f"{n.upper()}{getattr(self, n)}" for n in names if getattr(self, n) > 1]
        if self.copies > 1:
            parts.append(f"attention x{self.copies}")
        if self.redundant:
            parts.append(f"{self.redundant} redundant")
        return "·".join(parts) if parts else "TP1"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where a card stands: its index along every degree, and its expert group and place in it."""

    stage: int
    dp: int
    copy: int
    cp: int
    tp: int
    expert_group: int
    expert_part: int


def coordinates(config: ParallelConfig, card: int) -> Coordinates:
    """Return where card number `card` of a serving instance stands; TP varies fastest.

    Raises IndexError for a card the instance does not have.
    """
    if not 0 <= card < config.num_cards:
        raise IndexError(f"{config.label()} has cards 0..{config.num_cards - 1}, not {card}")
    stage, place = divmod(card, config.stage_cards)
    rest, tp = divmod(place, config.tp)
    rest, cp = divmod(rest, config.cp)
    dp, copy = divmod(rest, config.copies)
    group, part = divmod(place, config.moe_tp)
    return Coordinates(stage, dp, copy, cp, tp, group, part)
