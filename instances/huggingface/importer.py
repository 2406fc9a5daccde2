"""A Hugging Face configuration turned into a model specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from instances.errors import InputError
from instances.huggingface import deepseek, deepseek_v4, dense, hybrid
from instances.huggingface.reader import ConfigReader, ModelImportError
from instances.model import ModelSpec

#: The function of each `model_type` that turns its fields into those of a model.
_FAMILIES: dict[str, Callable[[ConfigReader], dict[str, Any]]] = {
    "llama": dense.llama,
    "mistral": dense.mistral,
    "mixtral": dense.mixtral,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "qwen3_moe": dense.qwen3_moe,
    "glm4_moe": dense.glm4_moe,
    "gpt_oss": dense.gpt_oss,
    "deepseek_v3": deepseek.deepseek_v3,
    "kimi_k2": deepseek.deepseek_v3,
    "glm_moe_dsa": deepseek.glm_moe_dsa,
    "deepseek_v4": deepseek_v4.deepseek_v4,
    "deepseek_v41": deepseek_v4.deepseek_v41,
    "qwen3_5": hybrid.qwen3_5,
    "qwen3_5_moe": hybrid.qwen3_5_moe,
    "kimi_k3": hybrid.kimi_k3,
    "kimi_linear": hybrid.kimi_linear,
}

_BY_HAND = (
    "write the model by hand: name, hidden_size, vocab_size, formats, and num_layers, num_heads, "
    "num_kv_heads, head_dim, ffn_size for a dense decoder or groups of layers, attention and ffn "
    "for any other"
)


def supported_model_types() -> tuple[str, ...]:
    """Return every `model_type` that can be imported, sorted."""
    return tuple(sorted(_FAMILIES))


def _language_model(config: ConfigReader) -> tuple[str, ConfigReader]:
    """Return the `model_type` to import and the object that describes the language model."""
    text = config.optional_section("text_config")
    names = [config.text("model_type")]
    if text is not None and text.has("model_type"):
        names += [text.text("model_type"), text.text("model_type").removesuffix("_text")]
    for name in names:
        if name in _FAMILIES:
            return name, text or config
    known = ", ".join(supported_model_types())
    rule = f"no such architecture can be imported (there are: {known}); {_BY_HAND}"
    raise config.error("model_type", rule, names[0])


def import_model(config: Mapping[str, Any], source: str, name: str | None = None) -> ModelSpec:
    """Return the model that a Hugging Face configuration describes.

    Parameters
    ----------
    config
        The parsed `config.json`; a nested `text_config` is the language model, and fields that
        say nothing about sizes are ignored.
    source
        Where it comes from, for messages.
    name
        Name of the model; by default that of the file.

    Raises
    ------
    ModelImportError
        Naming the field that is missing, odd or not understood, and what to do.
    """
    # instances.io resolves references with this module, so it cannot be imported before it
    from instances.io import validate

    if not isinstance(config, Mapping):
        raise ModelImportError(source, "", "a Hugging Face configuration is a JSON object")
    model_type, reader = _language_model(ConfigReader(config, source))
    try:
        fields: dict[str, Any] = {
            "name": name or _default_name(source),
            "sources": {"groups": f"imported from {Path(source).name}, model_type {model_type}"},
            **_FAMILIES[model_type](reader),
        }
    except ValidationError as error:  # sizes that do not go together, found by a layer's own rules
        rule = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise reader.error("model_type", f"{rule}; correct these fields", model_type) from None
    try:
        return validate(ModelSpec, fields, source)
    except InputError as error:
        raise ModelImportError(source, error.field, error.rule, error.value) from None


def _default_name(source: str) -> str:
    """Return the file's name, or its folder's where the file is called config.json."""
    path = Path(source)
    name = path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")
    return name[:120] or "model"
