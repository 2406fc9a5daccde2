"""Storage formats that a configuration's `quantization_config` gives to each module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from instances.formats import WHOLE_AXIS, ModelFormats
from instances.huggingface.reader import ConfigReader

#: A format as documents write it: a name, or numbers with scales.
FormatDocument = str | dict[str, Any]

#: Modules of a component: the layers that have it, and its modules' names inside a layer.
Modules = Mapping[str, tuple[Sequence[int], tuple[str, ...]]]

#: What checkpoints put before "layers.0" or "lm_head".
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.", "")

#: Fields that list the modules stored plain, one name per maker of quantised checkpoints.
_KEPT = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")

_FIX = "remove quantization_config and state the formats of the model by hand (model.formats)"


@dataclass(frozen=True, slots=True)
class Quantization:
    """Formats by module; `default` is that of a linear layer that nothing names (None: plain).

    Patterns are module names, "*" globs or "re:" expressions and hold for everything inside the
    modules that they match; `kept` ones are stored plain.
    """

    default: FormatDocument | None = None
    named: Mapping[str, FormatDocument] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    kv: str | None = None

    def format_of(self, module: str) -> FormatDocument | None:
        """Return the format of a module such as "layers.0.mlp.up_proj"; None is the plain one."""
        names = tuple(prefix + module for prefix in _PREFIXES)
        if any(_covers(pattern, names) for pattern in self.kept):
            return None
        for pattern, found in self.named.items():
            if _covers(pattern, names):
                return found
        return self.default


def _covers(pattern: str, names: Sequence[str]) -> bool:
    """Whether a pattern covers a module that checkpoints give one of these names."""
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    if "*" in pattern:
        return any(fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*") for n in names)
    return any(name == pattern or name.startswith(f"{pattern}.") for name in names)


def scaled(number: str, scale: str, outputs: int, inputs: int) -> dict[str, Any]:
    """Return a format with one scale per block of outputs × inputs numbers."""
    return {"number": number, "scale": {"number": scale, "block": [outputs, inputs]}}


def read_quantization(config: ConfigReader, plain: str = "bf16") -> Quantization | None:
    """Return the quantisation of a checkpoint; None without one.

    `plain` is the format of tensors that are not quantised, and of the scales that share it.
    Raises ModelImportError for a scheme that is not understood: its bytes are unknown.
    """
    held = config.holder("quantization_config", "compression_config")
    if held is None:
        return None
    section = held[0].section(held[1])
    method = section.text("quant_method")
    if method == "fp8":
        return _fp8(section)
    if method == "mxfp4":
        return Quantization(scaled("fp4", "e8m0", 1, 32), kept=_patterns(section, *_KEPT))
    if method == "modelopt":
        return _modelopt(section)
    if method == "compressed-tensors":
        return _compressed_tensors(section, plain)
    rule = (
        "is no quantisation that can be imported (there are: fp8, mxfp4, modelopt, "
        f"compressed-tensors); {_FIX}"
    )
    raise section.error("quant_method", rule, method)


def _patterns(section: ConfigReader, *fields: str) -> tuple[str, ...]:
    """Return the module patterns of some fields; raises ModelImportError for a bad expression."""
    found = []
    for name in fields:
        for pattern in section.texts(name):
            try:
                re.compile(pattern.removeprefix("re:") if pattern.startswith("re:") else "")
            except re.error as error:
                raise section.error(name, f"is no regular expression: {error}", pattern) from None
            found.append(pattern)
    return tuple(found)


def _fp8(section: ConfigReader) -> Quantization:
    """FP8 numbers with one FP32 scale per block; the head is not quantised."""
    block = section.integers("weight_block_size", minimum=1)
    if len(block) != 2:
        rule = f"must be two block sides; FP8 without blocks cannot be imported: {_FIX}"
        raise section.error("weight_block_size", rule, list(block))
    return Quantization(
        scaled("fp8", "fp32", block[0], block[1]), kept=(*_patterns(section, *_KEPT), "lm_head")
    )


def _modelopt_format(section: ConfigReader, algorithm: str) -> FormatDocument:
    """Return the format of a modelopt algorithm; the one FP32 scale of a tensor is left out."""
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        size = section.integer("group_size") if section.has("group_size") else 16
        return scaled("fp4", "fp8", 1, size)
    if algorithm == "FP8":
        return "fp8"
    rule = f"is no modelopt algorithm that can be imported (NVFP4, W4A16_NVFP4, FP8); {_FIX}"
    raise section.error("quant_algo", rule, algorithm)


def _modelopt(section: ConfigReader) -> Quantization:
    algorithm, kept = section.text("quant_algo"), _patterns(section, *_KEPT)
    kv = _kv_format(section)
    if algorithm != "MIXED_PRECISION":
        return Quantization(default=_modelopt_format(section, algorithm), kept=kept, kv=kv)
    layers = section.section("quantized_layers")
    named: dict[str, FormatDocument] = {}
    for module in layers.fields:
        layer = layers.section(module)
        named[module] = _modelopt_format(layer, layer.text("quant_algo"))
    return Quantization(named=named, kept=kept, kv=kv)


def _kv_format(section: ConfigReader) -> str | None:
    """Return the format of the KV cache where the checkpoint states one."""
    if section.has("kv_cache_quant_algo"):
        section.refuse("kv_cache_quant_algo", "FP8", f"only FP8 can be imported; {_FIX}")
        return "fp8"
    scheme = section.optional_section("kv_cache_scheme")
    if scheme is None:
        return None
    scheme.refuse("num_bits", 8, f"only an 8-bit KV cache can be imported; {_FIX}")
    return "fp8" if scheme.text("type") == "float" else "int8"


def _compressed_tensors(section: ConfigReader, plain: str) -> Quantization:
    groups = section.section("config_groups")
    named: dict[str, FormatDocument] = {}
    default: FormatDocument | None = None
    for name in groups.fields:
        group = groups.section(name)
        found = _compressed_format(group, plain, section.optional_text("format"))
        for target in _patterns(group, "targets"):
            if target == "Linear":
                default = found
            else:
                named[target] = found
    return Quantization(default, named, _patterns(section, *_KEPT), _kv_format(section))


def _compressed_format(group: ConfigReader, plain: str, packing: str | None) -> FormatDocument:
    """Return the format of a group; scales are stored like plain tensors unless packing differs."""
    weights = group.section("weights")
    kind, bits = weights.text("type"), weights.integer("num_bits")
    numbers = {("float", 8): "fp8", ("float", 4): "fp4", ("int", 8): "int8", ("int", 4): "int4"}
    if (kind, bits) not in numbers:
        raise weights.error("num_bits", f"{bits}-bit {kind} cannot be imported; {_FIX}", bits)
    weights.refuse("symmetric", True, f"zero points cannot be imported; {_FIX}")
    number, strategy = numbers[kind, bits], weights.text("strategy")
    if strategy == "tensor":
        return scaled(number, plain, WHOLE_AXIS, WHOLE_AXIS)
    if strategy == "channel":
        return scaled(number, plain, 1, WHOLE_AXIS)
    if strategy == "block":
        block = weights.integers("block_structure", minimum=1)
        if len(block) == 2:
            return scaled(number, plain, block[0], block[1])
    if strategy in ("group", "tensor_group"):
        size, written = weights.integer("group_size"), group.optional_text("format") or packing
        of_packing = {"mxfp4-pack-quantized": "e8m0", "nvfp4-pack-quantized": "fp8"}
        return scaled(number, of_packing.get(written or "", plain), 1, size)
    raise weights.error("strategy", f"cannot be imported; {_FIX}", strategy)


def _modules_of(layers: Sequence[int], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        yield from (f"layers.{layer}.{name}" for layer in layers) if layers else (name,)


def model_formats(
    config: ConfigReader,
    modules: Modules,
    plain_components: Sequence[str] = (),
    dtype: str | None = None,
) -> dict[str, Any]:
    """Return the `formats` of a model.

    `modules` are the components that quantisation may cover; "lm_head" has no layers.
    `plain_components` are matrices that published checkpoints leave as they are, `dtype` the plain
    format where the configuration does not say. Raises ModelImportError where the modules of one
    component differ, because a component has one format.
    """
    plain = config.dtype(dtype)
    found: dict[str, Any] = {"weights": plain, "embeddings": plain}
    if plain != ModelFormats().activations:  # vectors follow the activations
        found["vectors"] = plain
    quantization = read_quantization(config, plain)
    if quantization is None:
        return found
    if quantization.kv is not None:
        found["kv"] = quantization.kv
    default = quantization.default
    if isinstance(default, dict) and default["number"] == "fp8":
        found["weights"] = default  # engines do the arithmetic of such matrices in FP8 as well
    components: dict[str, FormatDocument] = dict.fromkeys(plain_components, plain)
    for component, (layers, names) in modules.items():
        stored = [quantization.format_of(m) or plain for m in _modules_of(layers, names)]
        if any(each != stored[0] for each in stored):
            rule = f"stores {component} in several formats, which cannot be imported; {_FIX}"
            raise config.error("quantization_config", rule)
        components[component] = stored[0]
    found["components"] = {
        component: stored
        for component, stored in components.items()
        if stored != (plain if component == "lm_head" else found["weights"])
    }
    return found
