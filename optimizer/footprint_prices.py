"""Exact bytes and times of footprints for the evaluator, each worked out once per problem."""

from __future__ import annotations

from fractions import Fraction

from instances.fleet import Pool
from instances.instance import Instance
from instances.workload import Cohort
from optimizer.legality import LENIENT, check_config
from optimizer.measured import measured_session_s
from optimizer.ownership import session_bytes, stage_places, stage_weight_bytes
from optimizer.peak import buffer_bytes, usable_bytes
from optimizer.plan import Footprint
from optimizer.steps import decode_step, prompt_s


def service_time_s(
    instance: Instance, pool: Pool, footprint: Footprint, cohort: Cohort
) -> Fraction:
    """Return the seconds one session of `cohort` takes on a lane: its prompt, then step by step.

    Every step is priced with all lanes busy. A measured time takes the place of all that. Raises
    CollectiveUnavailable, or ValueError where the split has no meaning.
    """
    step = decode_step(instance, pool, footprint)  # a collective must exist, measured or not
    measured = measured_session_s(instance, footprint, cohort)
    if measured is not None:
        return measured
    first = cohort.context_tokens + cohort.prompt_tokens + 1
    ticks = sum(step.ticks(tokens) for tokens in range(first, first + cohort.new_tokens))
    before = prompt_s(instance, pool, footprint, cohort) + step.fill_s(cohort.held_tokens)
    return before + Fraction(ticks, step.unit)


def is_meaningful(instance: Instance, footprint: Footprint) -> bool:
    """Whether bytes and times of a footprint are defined, allowed or not."""
    if min(footprint.batch, footprint.micro_batches) < 1:
        return False
    if check_config(instance.model, footprint.parallel, LENIENT):
        return False
    counts = footprint.stages or (instance.model.num_layers,)
    return (
        len(counts) == footprint.parallel.pp
        and min(counts) > 0
        and sum(counts) == instance.model.num_layers
    )


class FootprintPrices:
    """Remembers what footprints weigh, hold and take on one problem instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.pools = {pool.name: pool for pool in instance.fleet.pools}
        self._meaningful: dict[Footprint, bool] = {}
        self._weights: dict[Footprint, tuple[int, ...]] = {}
        self._sessions: dict[tuple[Footprint, str], tuple[int, ...]] = {}
        self._services: dict[tuple[Footprint, str], Fraction | None] = {}

    def is_meaningful(self, footprint: Footprint) -> bool:
        """Whether bytes and times of a footprint are defined, in a pool that exists."""
        if footprint not in self._meaningful:
            is_known = footprint.pool in self.pools and footprint.num_servers > 0
            self._meaningful[footprint] = is_known and is_meaningful(self.instance, footprint)
        return self._meaningful[footprint]

    def stage_weights(self, footprint: Footprint) -> tuple[int, ...]:
        """Weight bytes on each card, stage by stage."""
        if footprint not in self._weights:
            model, loaded = self.instance.model, self.instance.runtime.loaded_parts
            self._weights[footprint] = tuple(
                stage_weight_bytes(model, footprint.parallel, place, self.instance.engine, loaded)
                for place in stage_places(model, footprint.stages)
            )
        return self._weights[footprint]

    def session_bytes(self, footprint: Footprint, cohort: Cohort) -> tuple[int, ...]:
        """Cache bytes of one session on each card of its attention group, stage by stage."""
        key = (footprint, cohort.name)
        if key not in self._sessions:
            model, sharing = self.instance.model, self.instance.search.kv_sharing
            self._sessions[key] = tuple(
                session_bytes(model, footprint.parallel, place, cohort.held_tokens, sharing)
                for place in stage_places(model, footprint.stages)
            )
        return self._sessions[key]

    def buffer_bytes(self, footprint: Footprint) -> int:
        """Bytes of all buffers of a card."""
        return buffer_bytes(self.instance, footprint)

    def usable_bytes(self, footprint: Footprint) -> int:
        """Bytes of a card that may be used."""
        return usable_bytes(self.instance, self.pools[footprint.pool])

    def service_s(self, footprint: Footprint, cohort: Cohort) -> Fraction | None:
        """Seconds of one session on a lane; None where a collective has no price."""
        key = (footprint, cohort.name)
        if key not in self._services:
            pool = self.pools[footprint.pool]
            try:
                self._services[key] = service_time_s(self.instance, pool, footprint, cohort)
            except ValueError:
                self._services[key] = None
        return self._services[key]

    def held_sessions(self, footprint: Footprint, cohort: Cohort) -> int:
        """Sessions of a cohort whose caches fit at once on a serving instance."""
        room = self.usable_bytes(footprint) - self.buffer_bytes(footprint)
        sizes = zip(
            self.stage_weights(footprint), self.session_bytes(footprint, cohort), strict=True
        )
        fits = [max(room - weights, 0) // each for weights, each in sizes if each]
        return footprint.parallel.dp * min(fits, default=0)
