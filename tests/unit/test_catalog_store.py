"""The catalog hands out fresh, sourced entries and names the nearest one when asked wrongly."""

from __future__ import annotations

import json
from decimal import Decimal
from importlib.resources import files
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from instances.catalog_store import (
    UnknownEntryError,
    catalog_entry,
    catalog_kinds,
    catalog_names,
    resolve_reference,
)
from instances.engine import EngineProfile
from instances.model import ModelSpec
from instances.quantity import parse_quantity
from instances.topology import Topology
from optimizer.inventory import weight_bytes

ALL_ENTRIES = [(kind, name) for kind in catalog_kinds() for name in catalog_names(kind)]
DENSE = {"num_layers", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "qk_norm", "qkv_bias"}
COMMON = {"hidden_size", "vocab_size", "tied_embeddings", "formats"}
OPTIONAL = {"residual_streams", "tables", "extra", "parts"}
FIELDS = {
    "models": COMMON | {"groups"},
    "accelerators": {"memory_bytes", "memory_bandwidth_bytes_per_s", "peak_flops_per_s", "power_w"},
    "fabrics": {"alpha_s", "bandwidth_bytes_per_s", "measured", "topology"},
    "servers": {"accelerator", "num_cards", "fabric", "power_w"},
    "measurements": {"operation", "ranks", "servers", "variant", "policy", "rows"},
    "engines": set(EngineProfile.model_fields) - {"name", "sources"},
}
TOPOLOGY: TypeAdapter[Any] = TypeAdapter(Topology)
MAY_BE_ZERO = {"start_s", "hop_latency_s", "network_latency_s"}
SUFFIXES = {
    "_bytes_per_s": "bytes_per_s",
    "_flops_per_s": "flops_per_s",
    "_bytes": "bytes",
    "_s": "seconds",
    "_w": "watts",
}


def fields_of(kind: str, entry: dict[str, Any]) -> set[str]:
    """Return the fields an entry must have: a model is written flat or as groups of layers."""
    if kind == "topologies":
        return set(type(TOPOLOGY.validate_python(entry)).model_fields) - {"name", "sources"}
    if kind == "memory":
        size = {"area_mm2", "bytes_per_mm2"} if entry["kind"] == "rom" else {"capacity_bytes"}
        return {"kind", "access"} | size | ({"max_reads_per_s"} & set(entry))
    if kind != "models":
        return FIELDS[kind]
    shape = FIELDS["models"] if "groups" in entry else COMMON | DENSE
    return shape | (OPTIONAL & set(entry))


def dimension_of(field: str) -> str | None:
    return next((dim for suffix, dim in SUFFIXES.items() if field.endswith(suffix)), None)


def leaves(field: str, value: Any) -> list[tuple[str, Any]]:
    """List every number or text below a field, each under the nearest name with a unit suffix."""
    if isinstance(value, dict):
        return [
            leaf
            for key, inner in value.items()
            for leaf in leaves(key if dimension_of(key) else field, inner)
        ]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(field, inner)]
    return [(field, value)]


def is_number(field: str, value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return False
    return isinstance(value, int | Decimal) or dimension_of(field) is not None


def test_the_kinds_are_the_eight_files() -> None:
    kinds = "models accelerators fabrics servers measurements engines topologies memory"
    assert catalog_kinds() == tuple(kinds.split())


def test_names_are_sorted_and_complete() -> None:
    models = """
        deepseek-r1 deepseek-v3 deepseek-v4-flash deepseek-v4-pro deepseek-v4.1-flash glm-4.5
        gpt-oss-120b kimi-k2-instruct kimi-k3 llama-3.1-405b llama-3.1-70b llama-3.1-8b
        mixtral-8x22b mixtral-8x7b qwen3-235b-a22b qwen3-30b-a3b qwen3-32b qwen3-8b qwen3.6-35b-a3b
    """
    assert catalog_names("models") == tuple(models.split())
    assert catalog_names("engines") == ("sglang", "tensorrt-llm", "textbook", "vllm")
    links = "infiniband-ndr infiniband-ndr-two-servers nvlink-4 nvlink-4-measured nvlink-4-nvswitch"
    assert catalog_names("fabrics") == tuple(links.split())
    assert catalog_names("servers") == ("hgx-h100", "hgx-h200")
    assert catalog_names("measurements") == (
        "allgather-8x-h100-nccl",
        "allreduce-2x-hgx-h100",
        "allreduce-8x-h100-nccl",
        "allreduce-8x-h100-sglang",
        "allreduce-8x-h100-tensorrt-llm",
        "alltoall-8x-h100-nccl",
    )
    accelerators = catalog_names("accelerators")
    assert accelerators == tuple(sorted(accelerators))
    assert {"h100-sxm", "h200-sxm", "b200-sxm", "mi300x"} <= set(accelerators)


@pytest.mark.parametrize("kind", catalog_kinds())
def test_no_entry_name_or_field_is_written_twice_in_a_file(kind: str) -> None:
    """JSON readers keep the last of two equal keys silently."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys)), keys
        return dict(pairs)

    text = files("instances").joinpath("catalog", f"{kind}.json").read_text(encoding="utf-8")
    assert set(json.loads(text, object_pairs_hook=unique)) == {"entries"}


@pytest.mark.parametrize(("kind", "name"), ALL_ENTRIES)
def test_every_entry_has_exactly_the_fields_of_its_kind(kind: str, name: str) -> None:
    entry = catalog_entry(kind, name)
    assert entry["name"] == name
    fields = fields_of(kind, entry)
    assert set(entry) == fields | {"name", "sources"}
    assert set(entry["sources"]) <= fields


@pytest.mark.parametrize(("kind", "name"), ALL_ENTRIES)
def test_every_number_in_the_catalog_has_a_source(kind: str, name: str) -> None:
    entry = catalog_entry(kind, name)
    for field in fields_of(kind, entry):
        if any(is_number(*leaf) for leaf in leaves(field, entry[field])):
            source = entry["sources"].get(field)
            assert isinstance(source, str), f"{kind}/{name}: {field} has no source"
            assert len(source.strip()) >= 10, f"{kind}/{name}: {field} has no usable source"


@pytest.mark.parametrize(("kind", "name"), ALL_ENTRIES)
def test_an_unknown_number_has_no_source(kind: str, name: str) -> None:
    """A null is "not published", so a source beside it would be about some other number."""
    entry = catalog_entry(kind, name)
    assert not [field for field in entry["sources"] if entry[field] is None]


@pytest.mark.parametrize(("kind", "name"), ALL_ENTRIES)
def test_every_quantity_is_text_with_a_unit_or_a_count_and_is_readable(
    kind: str, name: str
) -> None:
    entry = catalog_entry(kind, name)
    for field in fields_of(kind, entry):
        for leaf_field, value in leaves(field, entry[field]):
            dimension = dimension_of(leaf_field)
            if dimension is not None and value is not None:
                assert parse_quantity(value, dimension) > 0 or leaf_field in MAY_BE_ZERO


@pytest.mark.parametrize("name", catalog_names("engines"))
def test_every_field_of_an_engine_has_a_source_and_what_is_refused_says_so(name: str) -> None:
    """Most fields are no numbers, but all are claims about a program."""
    entry = catalog_entry("engines", name)
    assert set(entry["sources"]) == FIELDS["engines"]
    assert EngineProfile.model_validate(entry).name == name
    for field, source in entry["sources"].items():
        assert len(source) >= 20, field
        if "not documented" in source:
            assert entry[field] is False, field
            assert "refused" in source, field


DENSE_MODELS = [m for m in catalog_names("models") if "groups" not in catalog_entry("models", m)]
GROUPED_MODELS = [m for m in catalog_names("models") if m not in DENSE_MODELS]


@pytest.mark.parametrize("name", DENSE_MODELS)
def test_every_dense_model_groups_its_heads_and_stores_bf16(name: str) -> None:
    entry = catalog_entry("models", name)
    assert entry["num_heads"] % entry["num_kv_heads"] == 0
    assert entry["tied_embeddings"] is False
    assert entry["qkv_bias"] is False
    assert entry["formats"] == dict.fromkeys(("weights", "embeddings", "kv", "activations"), "bf16")


@pytest.mark.parametrize("name", GROUPED_MODELS)
def test_every_group_of_layers_has_an_attention_and_a_feed_forward_block(name: str) -> None:
    entry = catalog_entry("models", name)
    assert entry["tied_embeddings"] is False
    names = [group["name"] for group in entry["groups"]]
    assert len(set(names)) == len(names)
    for group in entry["groups"]:
        assert group["attention"]["kind"] in ("gqa", "mla", "linear", "kda", "compressed")
        assert group["ffn"]["kind"] in ("dense", "moe")


@pytest.mark.parametrize(
    ("name", "checkpoint_bytes"),
    [
        ("qwen3-8b", 16_381_470_720),
        ("qwen3-32b", 65_524_246_528),
        ("llama-3.1-8b", 16_060_522_496),
        ("llama-3.1-70b", 141_107_412_992),
        ("llama-3.1-405b", 811_706_777_600),
    ],
)
def test_dense_model_sizes_add_up_to_the_published_checkpoint(
    name: str, checkpoint_bytes: int
) -> None:
    """Counting the tensors that the fields imply gives the published bytes of the bf16 weights."""
    e = catalog_entry("models", name)
    hidden, head = e["hidden_size"], e["head_dim"]
    attention = hidden * head * (2 * e["num_heads"] + 2 * e["num_kv_heads"])
    norms = 2 * hidden + (2 * head if e["qk_norm"] else 0)
    per_layer = attention + 3 * hidden * e["ffn_size"] + norms
    numbers = e["num_layers"] * per_layer + 2 * e["vocab_size"] * hidden + hidden
    assert 2 * numbers == checkpoint_bytes


@pytest.mark.parametrize(
    ("name", "checkpoint_bytes"),
    [
        ("qwen3-30b-a3b", 61_064_245_248),
        ("gpt-oss-120b", 65_248_815_744),
        ("qwen3.6-35b-a3b", 71_903_645_408),
        ("mixtral-8x7b", 93_405_585_408),
        ("deepseek-v4-flash", 159_609_485_896),
        ("mixtral-8x22b", 281_241_268_224),
        ("qwen3-235b-a22b", 470_187_269_120),
        ("deepseek-v4.1-flash", 510_286_023_000),
        ("deepseek-v3", 688_574_839_360),
        ("deepseek-r1", 688_574_839_360),
        ("deepseek-v4-pro", 864_704_792_696),
        ("kimi-k3", 1_560_860_324_864),
    ],
)
def test_grouped_model_sizes_add_up_to_the_published_checkpoint(
    name: str, checkpoint_bytes: int
) -> None:
    """All tensors of the checkpoint, side parts included, scales too."""
    model = ModelSpec.model_validate(catalog_entry("models", name))
    assert weight_bytes(model) == checkpoint_bytes


def test_the_h100_has_its_published_numbers() -> None:
    entry = catalog_entry("accelerators", "h100-sxm")
    assert entry["memory_bytes"] == "80GB"
    assert entry["memory_bandwidth_bytes_per_s"] == "3350GB/s"
    assert entry["peak_flops_per_s"] == {"bf16": "989.4TFLOP/s", "fp8": "1978.9TFLOP/s"}
    assert entry["power_w"] == "700W"


@pytest.mark.parametrize("name", catalog_names("accelerators"))
def test_every_accelerator_has_memory_bandwidth_and_a_bf16_peak(name: str) -> None:
    entry = catalog_entry("accelerators", name)
    assert entry["memory_bytes"]
    assert entry["memory_bandwidth_bytes_per_s"]
    assert "bf16" in entry["peak_flops_per_s"]
    assert set(entry["peak_flops_per_s"]) <= {"bf16", "fp8", "fp4"}


def test_fabrics_and_server_have_their_published_numbers() -> None:
    nvlink = catalog_entry("fabrics", "nvlink-4")
    assert (nvlink["alpha_s"], nvlink["bandwidth_bytes_per_s"]) == ("822ns", "450GB/s")
    infiniband = catalog_entry("fabrics", "infiniband-ndr")
    assert infiniband["alpha_s"] == "3.76us"
    assert parse_quantity(infiniband["bandwidth_bytes_per_s"], "bytes_per_s") == parse_quantity(
        "400Gbit/s", "bytes_per_s"
    )
    server = catalog_entry("servers", "hgx-h100")
    assert (server["num_cards"], server["power_w"]) == (8, "10.2kW")


def test_names_inside_entries_lead_to_entries() -> None:
    for name in catalog_names("servers"):
        server = catalog_entry("servers", name)
        assert server["accelerator"] in catalog_names("accelerators")
        assert server["fabric"] in catalog_names("fabrics")
    for name in catalog_names("fabrics"):
        for measured in catalog_entry("fabrics", name)["measured"]:
            assert measured in catalog_names("measurements")


def test_the_measured_rows_are_sorted_once_per_size_and_keep_their_outliers() -> None:
    entry = catalog_entry("measurements", "allreduce-2x-hgx-h100")
    sizes = [row["message_bytes"] for row in entry["rows"]]
    times = {row["message_bytes"]: row["time_s"] for row in entry["rows"]}
    assert sizes == [2**power for power in range(3, 35)]
    assert times[8] == "68.52us"
    assert times[256] == "94.4us"
    assert times[16384] == "32.74us"
    assert (entry["operation"], entry["ranks"], entry["servers"]) == ("all_reduce", 16, 2)
    assert entry["policy"] == "next_larger_size"


def test_an_entry_is_a_fresh_copy_every_time() -> None:
    first = catalog_entry("accelerators", "h100-sxm")
    first["peak_flops_per_s"]["bf16"] = "1FLOP/s"
    first["sources"].clear()
    second = catalog_entry("accelerators", "h100-sxm")
    assert second["peak_flops_per_s"]["bf16"] == "989.4TFLOP/s"
    assert second["sources"]


def test_an_unknown_name_gets_the_nearest_names_and_the_listing_command() -> None:
    with pytest.raises(UnknownEntryError) as error:
        catalog_entry("models", "Qwen3-32")
    assert isinstance(error.value, KeyError)
    assert str(error.value) == (
        "no entry 'Qwen3-32' in catalog models; nearest: qwen3-32b, qwen3-8b, qwen3-30b-a3b; "
        "list all: supernode catalog models"
    )


def test_a_name_unlike_any_other_still_says_how_to_list_them() -> None:
    with pytest.raises(UnknownEntryError) as error:
        catalog_entry("servers", "\n" * 10_000)
    message = str(error.value)
    assert message.endswith("nothing has a similar name; list all: supernode catalog servers")
    assert len(message.splitlines()) == 1
    assert len(message) < 300


@pytest.mark.parametrize("kind", ["model", "../models", "", "x" * 10_000])
def test_an_unknown_kind_is_refused_with_the_known_ones(kind: str) -> None:
    with pytest.raises(UnknownEntryError, match=r"unknown catalog kind .*use one of models, acc"):
        catalog_names(kind)
    with pytest.raises(UnknownEntryError, match="unknown catalog kind"):
        catalog_entry(kind, "h100-sxm")


def test_a_reference_by_name_is_the_entry() -> None:
    resolve = resolve_reference("accelerators")
    assert resolve("h100-sxm") == catalog_entry("accelerators", "h100-sxm")


def test_a_base_with_changes_replaces_fields_and_drops_their_sources() -> None:
    given = {"base": "h100-sxm", "memory_bytes": "96GB", "power_w": None}
    resolved = resolve_reference("accelerators")(given)
    base = catalog_entry("accelerators", "h100-sxm")
    assert isinstance(resolved, dict)
    assert resolved["name"] == "h100-sxm (modified)"
    assert resolved["memory_bytes"] == "96GB"
    assert resolved["power_w"] is None
    assert resolved["peak_flops_per_s"] == base["peak_flops_per_s"]
    assert set(resolved["sources"]) == {"memory_bandwidth_bytes_per_s", "peak_flops_per_s"}
    assert "base" not in resolved
    assert given == {"base": "h100-sxm", "memory_bytes": "96GB", "power_w": None}


def test_a_modified_entry_may_bring_its_own_name_and_sources() -> None:
    resolved = resolve_reference("accelerators")(
        {
            "base": "h100-sxm",
            "name": "h100-96gb",
            "memory_bytes": "96GB",
            "sources": {"memory_bytes": "our order sheet"},
        }
    )
    assert isinstance(resolved, dict)
    assert resolved["name"] == "h100-96gb"
    assert resolved["sources"]["memory_bytes"] == "our order sheet"
    assert "NVIDIA" in resolved["sources"]["power_w"]


def test_sources_of_the_wrong_type_are_left_for_the_model_to_refuse() -> None:
    resolved = resolve_reference("fabrics")({"base": "nvlink-4", "sources": "me"})
    assert isinstance(resolved, dict)
    assert resolved["sources"] == "me"


@pytest.mark.parametrize("value", [None, 5, ["h100-sxm"], {"name": "mine"}, {}])
def test_anything_else_passes_through_unchanged(value: object) -> None:
    assert resolve_reference("accelerators")(value) is value


class Holder(BaseModel):
    """A model with one field that takes a catalog reference."""

    card: Annotated[dict[str, Any], BeforeValidator(resolve_reference("accelerators"))]


@pytest.mark.parametrize("card", ["h100-smx", {"base": "h100-smx"}, {"base": 5}])
def test_a_wrong_reference_is_a_validation_error_at_its_field(card: object) -> None:
    with pytest.raises(ValidationError, match="list all: supernode catalog accelerators") as error:
        Holder.model_validate({"card": card})
    assert error.value.errors()[0]["loc"] == ("card",)


def test_references_resolve_in_json_too() -> None:
    adapter = TypeAdapter(Holder)
    read = adapter.validate_json('{"card": {"base": "h100-sxm", "power_w": 650}}')
    assert read.card["power_w"] == 650
    assert read.card["memory_bytes"] == "80GB"
