"""What a card holds at its peak besides weights and caches (section 1)."""

from __future__ import annotations

from instances.fleet import Pool
from instances.instance import Instance
from optimizer.plan import Footprint


def activation_bytes(instance: Instance, footprint: Footprint) -> int:
    """Bytes of hidden vectors in flight on a card: tokens of a step for every micro-batch.

    A step's tokens are its batch or the longest prompt (CP deals that out); SP shards them.
    """
    config = footprint.parallel
    prompt = max(cohort.prompt_tokens for cohort in instance.workload.cohorts)
    tokens = max(footprint.batch, -(-prompt // config.cp))
    model = instance.model
    width = model.residual_streams * model.hidden_size
    whole = footprint.micro_batches * tokens * width * model.formats.bytes_of("activations")
    return -(-whole // config.sp) * (2 if instance.runtime.double_buffers else 1)


def buffer_parts(instance: Instance, footprint: Footprint) -> tuple[tuple[str, int], ...]:
    """Return (what, bytes) of every declared buffer of a card; absent ones are in the workspace."""
    runtime = instance.runtime
    activations = activation_bytes(instance, footprint) if runtime.count_activations else 0
    parts = (
        ("workspace", runtime.workspace_bytes),
        ("collective_buffers", runtime.collective_buffer_bytes),
        ("migration_room", runtime.migration_bytes),
        ("activations", activations),
    )
    return tuple((name, size) for name, size in parts if size)


def buffer_bytes(instance: Instance, footprint: Footprint) -> int:
    """Bytes of all buffers of a card."""
    return sum(size for _, size in buffer_parts(instance, footprint))


def usable_bytes(instance: Instance, pool: Pool) -> int:
    """Bytes of a card that may be used: capacity times the usable fraction, rounded down."""
    return int(pool.server.accelerator.memory_bytes * instance.runtime.usable_memory_fraction)
