"""Prices of many candidates at once: exact bytes, and times in float64 (sections 1 to 4).

A candidate is a footprint and a batch. `ownership`, `peak` and `steps` price one at a time and
decide; these arrays price a whole grid, and the tests hold the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from instances.fleet import Pool
from instances.instance import Instance
from optimizer.arrays.memory import (
    MAX_WHOLE,
    Flags,
    Floats,
    FootprintArrays,
    Ints,
    buffer_bytes_arrays,
    footprint_arrays,
    session_bytes_arrays,
    weight_bytes,
)
from optimizer.arrays.times import decode_loads, prompt_loads, step_seconds

__all__ = ["FootprintArrays", "PriceArrays", "footprint_arrays", "price_arrays"]


@dataclass(frozen=True, slots=True)
class PriceArrays:
    """Prices of N footprints with B batches for C cohorts; S is the most stages of any footprint.

    Bytes are exact and of one card: `weight_bytes` [N, S] and `session_bytes` [N, S, C] of a
    session at its end, both 0 beyond a footprint's stages, and `buffer_bytes` [N, B]. Seconds
    have a relative error below 1e-12: `first_s` and `last_s` [N, B, C] before the first and the
    last new token of a session with all lanes busy, and `prompt_s` [N, C], of a batch of 1. They
    are NaN where an exchange has no price, which `is_timed` [N, B] and `is_prompt_timed` [N, C]
    tell.
    """

    weight_bytes: Ints
    session_bytes: Ints
    buffer_bytes: Ints
    first_s: Floats
    last_s: Floats
    prompt_s: Floats
    is_timed: Flags
    is_prompt_timed: Flags


def price_arrays(
    instance: Instance, pool: Pool, arrays: FootprintArrays, batches: Ints
) -> PriceArrays:
    """Price every footprint of a pool with every batch.

    Raises ValueError where a split has no meaning and for batches below 1, TooLargeError where
    numbers are too large for the arrays.
    """
    sizes = np.asarray(batches, dtype=np.int64)
    if sizes.ndim != 1 or not sizes.size or not 1 <= sizes.min() <= sizes.max() <= MAX_WHOLE:
        raise ValueError("batches must be a row of whole numbers from 1 on")
    cohorts = instance.workload.cohorts
    starts = [cohort.context_tokens + cohort.prompt_tokens + 1 for cohort in cohorts]
    lengths = starts + [cohort.held_tokens for cohort in cohorts]
    seconds = step_seconds(instance, pool, arrays, decode_loads(sizes, lengths))
    prompts = np.zeros((len(arrays), len(cohorts)))
    given = [c for c, cohort in enumerate(cohorts) if cohort.prompt_tokens]
    if given:
        loads = prompt_loads([(cohorts[c].prompt_tokens, cohorts[c].context_tokens) for c in given])
        prompts[:, given] = step_seconds(instance, pool, arrays, loads)[:, :, 0]
    return PriceArrays(
        weight_bytes(instance, arrays),
        session_bytes_arrays(instance, arrays, cohorts),
        buffer_bytes_arrays(instance, arrays, sizes),
        seconds[:, :, : len(cohorts)],
        seconds[:, :, len(cohorts) :],
        prompts,
        np.isfinite(seconds[:, :, 0]),
        np.isfinite(prompts),
    )
