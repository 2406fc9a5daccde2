"""Parts of tiny problem instances: a dense model of two layers, a card of 1 MB, a fabric."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

WIDTHS = {"hidden_size": 8, "head_dim": 2, "ffn_size": 16, "vocab_size": 32}
MODEL = {"name": "tiny", "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, **WIDTHS}
FABRIC = {"name": "in", "alpha_s": "100ns", "bandwidth_bytes_per_s": "1GB/s"}
CARD = {
    "name": "card",
    "memory_bytes": 10**6,
    "memory_bandwidth_bytes_per_s": "1GB/s",
    "peak_flops_per_s": {"bf16": "1PFLOP/s"},
}
