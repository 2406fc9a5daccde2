"""Models from Hugging Face configurations: `config.json` turned into a model specification."""

from instances.huggingface.importer import import_model, supported_model_types
from instances.huggingface.reader import ModelImportError
from instances.huggingface.references import load_model, resolve_model_reference

__all__ = [
    "ModelImportError",
    "import_model",
    "load_model",
    "resolve_model_reference",
    "supported_model_types",
]
