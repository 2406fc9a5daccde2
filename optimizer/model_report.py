"""What one model weighs, keeps and allows: the numbers behind `supernode model`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from instances.engine import TEXTBOOK, EngineProfile
from instances.model import ModelSpec
from instances.tensors import StatePart
from optimizer.inventory import bytes_by_group, parameters, weight_bytes
from optimizer.legality import Rule, check_ep, check_tp

#: Degrees that a report judges.
DEGREES = (*range(1, 65), 128, 256, 512, 1024)

#: Bytes of published checkpoints, all parts included, and where they are stated.
CHECKED_CHECKPOINTS = {
    13_761_264_768: "openai/gpt-oss-20b, index metadata.total_size",
    16_060_522_496: "meta-llama/Llama-3.1-8B, index metadata.total_size",
    16_381_470_720: "Qwen/Qwen3-8B, index metadata.total_size",
    61_064_245_248: "Qwen/Qwen3-30B-A3B, index metadata.total_size",
    65_248_815_744: "openai/gpt-oss-120b, sum of its tensors",
    65_524_246_528: "Qwen/Qwen3-32B, index metadata.total_size",
    71_903_645_408: "Qwen/Qwen3.6-35B-A3B, index metadata.total_size",
    93_405_585_408: "mistralai/Mixtral-8x7B-v0.1, index metadata.total_size",
    141_107_412_992: "meta-llama/Meta-Llama-3.1-70B, index metadata.total_size",
    159_609_485_896: "deepseek-ai/DeepSeek-V4-Flash, index metadata.total_size",
    281_241_268_224: "mistralai/Mixtral-8x22B-v0.1, sum of its tensors",
    470_187_269_120: "Qwen/Qwen3-235B-A22B, index metadata.total_size",
    510_286_023_000: "deepseek-ai/DeepSeek-V4.1-Flash, index metadata.total_size",
    688_574_839_360: "deepseek-ai/DeepSeek-V3 and R1, sum of 91,991 tensors",
    811_706_777_600: "meta-llama/Meta-Llama-3.1-405B, stated weight bytes",
    864_704_792_696: "deepseek-ai/DeepSeek-V4-Pro, sum of 145,116 tensors",
    1_560_860_324_864: "moonshotai/Kimi-K3, index metadata.total_size",
}

_DIMENSIONS = (
    "every size follows from the fields; no published byte total is known to compare with, and "
    "single scales of whole tensors, which some quantised checkpoints have, are not counted"
)


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Sizes of a model in bytes of one whole copy, and the degrees that an engine allows.

    `kv_bytes_per_token` is of all layers whose state grows with every token, rounded up where some
    keep an entry for several tokens; `window_bytes_per_request` is of full sliding windows and
    `state_bytes_per_request` of fixed states.
    """

    spec: ModelSpec
    engine: str
    parameters: int
    parameters_main: int
    weight_bytes: int
    weight_bytes_main: int
    bytes_by_group: dict[str, int]
    kv_bytes_per_token: int
    window_bytes_per_request: int
    state_bytes_per_request: int
    state_bytes_by_component: dict[str, int]
    legal_tp: tuple[int, ...]
    legal_ep: tuple[int, ...]
    illegal_tp: dict[int, Rule]
    illegal_ep: dict[int, Rule]
    exactness: str
    exactness_reason: str

    def to_document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        illegal = {"tp": self.illegal_tp, "ep": self.illegal_ep}
        return {
            "name": self.spec.name,
            "engine": self.engine,
            "exactness": self.exactness,
            "exactness_reason": self.exactness_reason,
            "parameters": self.parameters,
            "parameters_main": self.parameters_main,
            "weight_bytes": self.weight_bytes,
            "weight_bytes_main": self.weight_bytes_main,
            "bytes_by_group": self.bytes_by_group,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "window_bytes_per_request": self.window_bytes_per_request,
            "state_bytes_per_request": self.state_bytes_per_request,
            "state_bytes_by_component": self.state_bytes_by_component,
            "legal_tp": list(self.legal_tp),
            "legal_ep": list(self.legal_ep),
            "illegal": {
                kind: {str(degree): rule.message for degree, rule in rules.items()}
                for kind, rules in illegal.items()
            },
            "spec": self.spec.model_dump(mode="json"),
        }


def report_model(model: ModelSpec, engine: EngineProfile = TEXTBOOK) -> ModelReport:
    """Return the report on a model and what an engine makes of it."""
    illegal_tp = _broken(lambda degree: check_tp(model, degree, engine))
    illegal_ep = _broken(lambda degree: check_ep(model, degree, engine))
    exactness, reason = exactness_of(model)
    fixed = _fixed_bytes(model)
    return ModelReport(
        spec=model,
        engine=engine.name,
        parameters=parameters(model),
        parameters_main=parameters(model, with_parts=False),
        weight_bytes=weight_bytes(model),
        weight_bytes_main=weight_bytes(model, with_parts=False),
        bytes_by_group=bytes_by_group(model),
        kv_bytes_per_token=growing_bytes_per_token(model),
        window_bytes_per_request=_window_bytes(model),
        state_bytes_per_request=sum(fixed.values()),
        state_bytes_by_component=fixed,
        legal_tp=tuple(degree for degree in DEGREES if degree not in illegal_tp),
        legal_ep=tuple(degree for degree in DEGREES if degree not in illegal_ep),
        illegal_tp=illegal_tp,
        illegal_ep=illegal_ep,
        exactness=exactness,
        exactness_reason=reason,
    )


def exactness_of(model: ModelSpec) -> tuple[str, str]:
    """Return "byte-exact" or "dimensions", and why."""
    published = CHECKED_CHECKPOINTS.get(weight_bytes(model))
    if published is None:
        return "dimensions", _DIMENSIONS
    return "byte-exact", f"the bytes equal those of the published checkpoint: {published}"


def _state_parts(model: ModelSpec) -> Iterator[tuple[StatePart, int]]:
    """Yield what a session keeps in one layer, with the number of such layers."""
    for group, parts in zip(model.groups, model.layer_state, strict=True):
        for part in parts:
            yield part, len(group.layers)


def growing_bytes_per_token(model: ModelSpec) -> int:
    """Bytes that every token adds to one copy of the caches for good, rounded up."""
    each = (
        Fraction(layers * part.entry_bytes, part.tokens_per_entry)
        for part, layers in _state_parts(model)
        if not part.is_fixed and part.window is None
    )
    return ceil(sum(each, Fraction(0)))


def _window_bytes(model: ModelSpec) -> int:
    """Bytes of one session's full sliding windows."""
    return sum(
        layers * part.entry_bytes * part.entries(part.window)
        for part, layers in _state_parts(model)
        if part.window is not None
    )


def _fixed_bytes(model: ModelSpec) -> dict[str, int]:
    """Bytes of one session's fixed states, by component."""
    found: Counter[str] = Counter()
    for part, layers in _state_parts(model):
        if part.is_fixed:
            found[part.component] += layers * part.entry_bytes
    return dict(found)


def _broken(check: Callable[[int], Rule | None]) -> dict[int, Rule]:
    """Return the rule that each illegal degree breaks."""
    found = {degree: check(degree) for degree in DEGREES}
    return {degree: rule for degree, rule in found.items() if rule is not None}
