"""The published figures that tests reproduce, and how many of them do.

    python tests/support/figures.py

prints the count by section. A figure is covered where a test names it: in `assert_figure`, or in
quotes in the test that computes it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

#: Names of the figures by section of the source text.
FIGURES = {
    "6.1.2": (
        "w235 kvtok235 kv8k235 w235tp8 kv235tp8 card235tp8 one235 server235 sess235 "
        "exp_mib exp_read exp_comp dec_w235 dec1_235 dec8_bytes dec8_235"
    ),
    "6.1.3": "pre_read pre_comp",
    "6.2.2": (
        "w32 kvtok32 s128 mem32_tp1 fit32_tp1 mem32_tp2 fit32_tp2 mem32_tp4 fit32_tp4 "
        "fit32_tp8 w_qwen3-32b kv_qwen3-32b s128_qwen3-32b r1_qwen3-32b r64_qwen3-32b "
        "fl64_qwen3-32b st64_qwen3-32b fit_qwen3-32b_1x131072 fit_qwen3-32b_1x32768 "
        "fit_qwen3-32b_2x131072 fit_qwen3-32b_2x32768 w_qwen3-30b-a3b kv_qwen3-30b-a3b "
        "s128_qwen3-30b-a3b r1_qwen3-30b-a3b r64_qwen3-30b-a3b fl64_qwen3-30b-a3b "
        "st64_qwen3-30b-a3b fit_qwen3-30b-a3b_1x131072 fit_qwen3-30b-a3b_1x32768 "
        "fit_qwen3-30b-a3b_2x131072 fit_qwen3-30b-a3b_2x32768 w_qwen3.6-35b-a3b "
        "kv_qwen3.6-35b-a3b s128_qwen3.6-35b-a3b r1_qwen3.6-35b-a3b r64_qwen3.6-35b-a3b "
        "fl64_qwen3.6-35b-a3b st64_qwen3.6-35b-a3b fit_qwen3.6-35b-a3b_1x131072 "
        "fit_qwen3.6-35b-a3b_1x32768 fit_qwen3.6-35b-a3b_2x131072 "
        "fit_qwen3.6-35b-a3b_2x32768 q36_256k ffn_tp4 ffn_t1 ffn_t4 tp16kv vstep tlocal "
        "grid_4x4 grid_2x8 grid_8x2"
    ),
    "6.2.3": "sp_act",
    "6.2.4": "cp_naive cp_zigzag",
    "6.2.5": "pp_4_4 pp_4_16 pp_uneven",
    "6.2.6": "disp_expert disp_card exp_layer exp_card",
    "6.3.1": "tp2ep4_w tp2ep4_kv tp2ep4_kvall tp2ep4_send tp2ep4_prefill",
    "6.3.2": (
        "moe_bal moe_conc moe_group_bal moe_group_conc moe_group_spread eactive eactive_read"
    ),
    "6.4.2": ("ring8 tree8 ring8big tree8big cross step_tp1 step_tp2 step_tp4 step_tp8 bw2 alpha2"),
    "6.4.3": "busbw overlap64",
    "6.5.1": (
        "tp16local tp16 tp16ring radix rec_hops rec_max rec_tot sw_hops sw_max sw_tot "
        "rec_t numa torus_far a2a links64 cm384"
    ),
    "6.5.2": "pw pw120 air",
    "6.5.3": "tp16nv",
    "6.5.4": "bisect ocs ocs_pay",
    "6.5.5": "ub_hosts ub_192 dir setup cm_pairs",
    "6.6.1": "pool pool_free",
    "6.6.2": "win128 umin win4096",
    "6.6.3": "read20 ten",
    "6.7.1": "svc_tp2 svc_tp4 svc_tp8 peak svc16",
    "6.7.2": "cost fault fault_cost energy svc32",
    "6.7.4": "v41_8 v41_64 v41_128 v41_256 v41_host v41_b1 v41_remote rom engram_reads wse",
    "7 (this project)": "tree_svc",
}


def assert_figure(name: str, computed: Fraction | int, published: str, tolerance: str) -> None:
    """Fail unless the exact value lies within `tolerance` of what is printed."""
    gap = abs(Fraction(computed) - Fraction(published))
    assert gap <= Fraction(tolerance), f"{name}: {float(computed)} is not {published}±{tolerance}"


def assert_figures(name: str, computed: Iterable[Fraction], published: str, tolerance: str) -> None:
    """As `assert_figure`, for values printed one after another."""
    for value, text in zip(computed, published.split(), strict=True):
        assert_figure(name, value, text, tolerance)


def covered_figures(folder: Path) -> dict[str, list[str]]:
    """Return the figures of every section that tests name, in quotes; a label may follow.

    Plain words such as "ring" count where something published is compared, since others use them
    as well.
    """
    named: dict[bool, set[str]] = {True: set(), False: set()}
    for file in folder.rglob("test_*.py"):
        text = file.read_text("utf-8")
        found = re.findall(r'"([\w.-]+)(?:, [^"\n]*)?"', text)
        named["published" in text] |= set(found)
    known = named[True] | {name for name in named[False] if not name.isalpha()}
    return {
        section: [name for name in names.split() if name in known]
        for section, names in FIGURES.items()
    }


def main() -> int:
    """Print the count by section; 0 if all are covered."""
    covered = covered_figures(Path(__file__).parent.parent)
    total = sum(len(names.split()) for names in FIGURES.values())
    found = sum(len(names) for names in covered.values())
    for section, names in FIGURES.items():
        missing = [name for name in names.split() if name not in covered[section]]
        short = f"; missing: {' '.join(missing)}" if missing else ""
        print(f"{section}: {len(covered[section])} of {len(names.split())}{short}")
    print(f"{found} of {total} published figures are covered by tests")
    return int(found < total)


if __name__ == "__main__":
    sys.exit(main())
