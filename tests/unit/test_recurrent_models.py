"""Models with recurrent layers: bytes per group, state of a session, work, cuts."""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError

from instances.catalog_store import catalog_entry
from instances.formats import ModelFormats
from instances.model import ModelSpec
from instances.recurrent import KdaAttention, LinearAttention
from instances.tensors import StatePart, Tensor
from optimizer.inventory import bytes_by_group, counted_tensors, parameters, weight_bytes
from optimizer.legality import check_tp

QWEN_LINEAR = LinearAttention(
    num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel=4
)
K3_KDA = KdaAttention(
    num_heads=96, head_dim=128, conv_kernel=4, decay_rank=128, num_decay_rates=128
)


def catalog_model(name: str) -> ModelSpec:
    return ModelSpec.model_validate(catalog_entry("models", name))


@pytest.fixture(scope="module")
def qwen() -> ModelSpec:
    return catalog_model("qwen3.6-35b-a3b")


@pytest.fixture(scope="module")
def kimi() -> ModelSpec:
    return catalog_model("kimi-k3")


def state_of(model: ModelSpec) -> dict[str, int]:
    """Return bytes by component that a session holds after one token, over all layers."""
    found: Counter[str] = Counter()
    for group, parts in zip(model.groups, model.layer_state, strict=True):
        for part in parts:
            found[part.component] += len(group.layers) * part.entries(1) * part.entry_bytes
    return dict(found)


def sum_of(groups: dict[str, int], *starts: str) -> int:
    return sum(size for name, size in groups.items() if name.startswith(starts))


def test_qwen_weighs_what_its_checkpoint_does(qwen: ModelSpec) -> None:
    # The published index: two bytes for each of 35,951,822,704 parameters.
    assert weight_bytes(qwen) == 71_903_645_408 == 2 * parameters(qwen)
    assert weight_bytes(qwen, with_parts=False) == 69_321_221_376


def test_every_group_of_qwen_weighs_what_the_checkpoint_says(qwen: ModelSpec) -> None:
    groups = bytes_by_group(qwen)
    # Two vectors of 256 numbers in BF16 normalise queries and keys of a full-attention layer.
    qk_norms = 2 * 256 * 2
    assert groups["embedding"] == groups["lm_head"] == 1_017_118_720
    assert groups["norms"] - 10 * qk_norms == 331_776
    assert sum_of(groups, "linear_") == 2_023_107_840
    assert sum_of(groups, "attention_") + 10 * qk_norms == 545_269_760
    assert groups["router"] == 41_943_040
    assert groups["experts"] == 64_424_509_440
    assert groups["shared_experts"] == 251_658_240
    assert groups["shared_gate"] == 163_840
    assert sum_of(groups, "mtp/attention_") + qk_norms == 54_526_976
    assert groups["mtp/norms"] - qk_norms == 20_480
    assert groups["mtp/router"] == 1_048_576
    assert groups["mtp/experts"] == 1_610_612_736
    assert groups["mtp/shared_experts"] == 6_291_456
    assert groups["mtp/shared_gate"] == 4_096
    assert groups["mtp/projection"] == 16_777_216
    assert sum_of(groups, "vision/") == 893_142_496


def test_every_group_of_kimi_k3_weighs_what_the_checkpoint_says(kimi: ModelSpec) -> None:
    groups = bytes_by_group(kimi)
    fp32 = ("linear_conv", "linear_decay_bias", "linear_decay_rate", "linear_norm")
    # Norms of latents (1536 and 512 numbers in BF16) stand in the 24 latent-attention layers.
    latent_norms = 24 * (1536 + 512) * 2
    assert weight_bytes(kimi) == 1_560_860_324_864
    assert weight_bytes(kimi, with_parts=False) == 1_559_965_606_912
    assert groups["embedding"] == groups["lm_head"] == 2_348_810_240
    assert sum_of(groups, *fp32) == 44_160_000
    assert sum_of(groups, "linear_") - sum_of(groups, *fp32) == 61_214_097_408
    assert sum_of(groups, "attention_") - groups["attention_residual"] == (
        11_145_412_608 - latent_norms
    )
    # Per layer two norms and four vectors of the attention residual; three vectors at the end.
    norms = groups["norms"] - latent_norms + groups["attention_residual"]
    assert norms == 7_999_488 + 43_008
    assert groups["attention_residual"] == (93 * 4 + 2) * 7168 * 2
    assert groups["ffn"] == 1_453_326_336
    assert groups["router"] == 1_181_745_152
    assert groups["router_bias"] == 329_728
    assert groups["shared_experts"] == 24_310_185_984
    assert groups["latent_projection"] == 9_453_961_216
    assert groups["latent_norm"] == 659_456
    assert groups["experts"] == 1_361_370_415_104
    assert groups["experts_scale"] == 85_085_650_944
    assert sum_of(groups, "vision/") == 802_428_928
    assert sum_of(groups, "projector/") == 92_289_024


def test_kimi_k3_has_as_many_tensors_of_each_type_as_its_shard_headers_list(
    kimi: ModelSpec,
) -> None:
    found: Counter[str] = Counter()
    for _, tensor, times in counted_tensors(kimi):
        stored = tensor.format_in(kimi.formats)
        # Packed numbers and their scales are tensors of their own.
        found[stored.number] += times * tensor.count * (1 if stored.scale is None else 2)
    assert found == {"fp32": 506, "bf16": 2122, "fp4": 494_592}


def test_the_recurrent_state_is_fixed_and_only_full_attention_grows(
    qwen: ModelSpec, kimi: ModelSpec
) -> None:
    # Per layer 32 heads x 128 x 128 x 4 B, and (2 x 2048 + 4096) channels x 4 taps x 2 B.
    assert state_of(qwen) == {
        "recurrent_state": 62_914_560,
        "conv_state": 1_966_080,
        "kv": 20_480,
    }
    # Per layer 96 heads x 128 x 128 x 4 B, and 3 x 12,288 channels x 4 taps x 2 B.
    assert state_of(kimi) == {
        "recurrent_state": 434_110_464,
        "conv_state": 20_348_928,
        "latent_kv": 27_648,
    }
    for part in (*QWEN_LINEAR.state(ModelFormats()), *K3_KDA.state(ModelFormats())):
        assert part.is_fixed
        assert part.entries(0) == part.entries(1_000_000) == part.read_entries(1_000_000) == 1


def test_one_session_of_128k_and_of_256k_tokens(qwen: ModelSpec) -> None:
    held = state_of(qwen)
    fixed = held["recurrent_state"] + held["conv_state"]
    # Published: 2.75 GB and 5.43 GB.
    assert 131_072 * held["kv"] + fixed == 2_749_235_200
    assert 262_144 * held["kv"] + fixed == 5_433_589_760


def test_the_state_follows_its_formats() -> None:
    formats = ModelFormats(state="bf16", activations="fp32")
    recurrent, conv = QWEN_LINEAR.state(formats)
    assert (recurrent.entry_bytes, conv.entry_bytes) == (32 * 128 * 128 * 2, 8192 * 4 * 4)


def test_the_state_is_dealt_out_by_heads() -> None:
    def units(parts: tuple[StatePart, ...]) -> list[tuple[str, int]]:
        return [(part.component, part.units) for part in parts]

    assert units(QWEN_LINEAR.state(ModelFormats())) == [("recurrent_state", 32), ("conv_state", 16)]
    assert units(K3_KDA.state(ModelFormats())) == [("recurrent_state", 96), ("conv_state", 96)]


def active_matrix_numbers(tensors: tuple[Tensor, ...], used: int, experts: int) -> int:
    return sum(
        t.numbers * used // experts if t.is_expert else t.numbers
        for t in tensors
        if t.role == "matrix"
    )


def test_decode_work_of_qwen_at_batch_64_and_32768_tokens(qwen: ModelSpec) -> None:
    numbers = qwen.lm_head.numbers
    state = attention = 0
    for group, tensors, parts in zip(
        qwen.groups, qwen.layer_tensors, qwen.layer_state, strict=True
    ):
        layers = len(group.layers)
        numbers += layers * active_matrix_numbers(tensors, 8, 256)
        state += layers * group.attention.token_flops()
        attention += layers * sum(p.flops_per_entry * p.read_entries(32_768) for p in parts)
    # 30 x (12,288 + 64 + 4,096) x 2048 and 4 taps of 8,192 channels; 10 x 27,262,976;
    # 40 x (256 + 1 + 9 x 3 x 512) x 2048; head 248,320 x 2048.
    assert numbers == 1_011_548_160 + 272_629_760 + 1_153_515_520 + 508_559_360
    assert state == 30 * 6 * 32 * 128 * 128
    assert attention == 10 * 4 * 16 * 256 * 32_768
    # Published: 0.73 TFLOP to two places.
    assert 64 * (2 * numbers + attention + state) == 726_757_539_840


def test_a_recurrent_layer_has_no_softmax_to_merge() -> None:
    assert QWEN_LINEAR.merge_numbers() == K3_KDA.merge_numbers() == (0, 0)


@pytest.mark.parametrize("kind", [QWEN_LINEAR, K3_KDA])
def test_a_cut_falls_between_heads(kind: LinearAttention | KdaAttention) -> None:
    cut = [tensor for tensor in kind.tensors(2048) if tensor.split != "copy"]
    assert {tensor.unit for tensor in cut} == {"key heads", "value heads"}
    for tensor in cut:
        axis = tensor.outputs if tensor.split == "outputs" else tensor.inputs
        assert axis % tensor.units == 0
        assert not tensor.is_replicable


def test_what_every_card_holds_whole() -> None:
    def whole(kind: LinearAttention | KdaAttention) -> set[str]:
        return {tensor.component for tensor in kind.tensors(2048) if tensor.split == "copy"}

    assert whole(QWEN_LINEAR) == {"linear_norm"}
    # 128 stored rates do not go with 96 heads.
    assert whole(K3_KDA) == {"linear_norm", "linear_decay_down", "linear_decay_rate"}
    per_head = K3_KDA.model_copy(update={"num_decay_rates": None})
    assert whole(per_head) == {"linear_norm", "linear_decay_down"}


def test_key_heads_bound_tensor_parallelism(qwen: ModelSpec, kimi: ModelSpec) -> None:
    assert check_tp(qwen, 16) is None
    refused = check_tp(qwen, 32)
    assert refused is not None
    assert refused.rule == "key_heads"
    assert check_tp(kimi, 32) is None
    refused = check_tp(kimi, 64)
    assert refused is not None
    assert (refused.rule, refused.amount) == ("key_heads", 32)


def test_heads_that_do_not_fit_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"num_value_heads 32 must be a multiple .* 12"):
        LinearAttention(
            num_key_heads=12,
            num_value_heads=32,
            key_head_dim=128,
            value_head_dim=128,
            conv_kernel=4,
        )
    with pytest.raises(ValidationError, match="num_decay_rates 64 is less than num_heads 96"):
        KdaAttention(num_heads=96, head_dim=128, conv_kernel=4, decay_rank=128, num_decay_rates=64)
