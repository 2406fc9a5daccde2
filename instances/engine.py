"""What a serving engine's kernels and layouts allow: profiles of legality rules."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from instances.catalog_store import reference
from instances.formats import Frozen


class EngineProfile(Frozen):
    """Which splits an engine runs.

    `replicates_kv_heads`: a KV head may be stored on several cards. `vocabulary_multiple`: rows are
    padded up to a multiple of this, on each card or, unless `pads_vocabulary_per_card`, in all
    (then they must divide); null refuses a vocabulary that does not divide.
    `pads_ffn`: feed-forward widths are padded up. `whole_blocks`: a card's part of a quantised
    matrix must be whole scale blocks. `redundant_experts`: spare expert slots may fill up the
    expert groups. `uneven_stages`: pipeline stages may hold different numbers of layers.
    `attention_dp_with_tp`: data-parallel attention groups may be tensor-parallel themselves.
    `dcp_latents_only`: cached tokens are dealt out for latent caches alone.
    `attention_copies`: attention may be copied on every expert group. `free_ep`: the expert groups
    may be any divisor of a stage's cards, else all of them or one.
    """

    name: Annotated[str, Field(min_length=1, max_length=120)]
    replicates_kv_heads: bool = True
    vocabulary_multiple: int | None = Field(default=1, ge=1, le=1_000_000)
    pads_vocabulary_per_card: bool = True
    pads_ffn: bool = True
    whole_blocks: bool = True
    redundant_experts: bool = True
    uneven_stages: bool = True
    attention_data_parallel: bool = True
    attention_dp_with_tp: bool = True
    attention_copies: bool = True
    context_parallel: bool = True
    decode_context_parallel: bool = True
    dcp_latents_only: bool = False
    free_ep: bool = True
    sources: dict[str, str] = Field(default_factory=dict)


#: The rules of arithmetic alone: what a textbook would call legal.
TEXTBOOK = EngineProfile(name="textbook")

Engine = Annotated[EngineProfile, reference("engines", EngineProfile)]
