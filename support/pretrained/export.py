"""Writes a trained Classifier as a Hugging Face folder."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from support.classification.classifier import Classifier
from support.classification.images import ImageTransform
from support.common.errors import UserError
from support.common.files import write_json
from support.pretrained.families import FAMILIES, exportable_family, to_file_tensors
from support.pretrained.hf_files import write_preprocessor, write_tokenizer


def export(folder: Path, model: Classifier, state: dict[str, Any]) -> None:
    """Writes a folder that transformers opens, with the same logits and class names.

    state: of the task. Raises UserError if no class of transformers computes the model. Of a
    text with more than max_length tokens, transformers reads only the beginning.
    """
    config = model.config
    if config.plain:
        raise UserError(
            f"{folder}: transformers computes the usual model; this one was trained with "
            f"--plain, so perhaps with changes"
        )
    classes = state["classes"]
    family = exportable_family(config)
    if not family:
        raise UserError(
            f"{folder}: no class of transformers computes this model. BERT, RoBERTa, "
            f"DistilBERT, ViT and DeiT without a teacher can be exported, with their own heads"
        )
    tensors = {}
    for parts in to_file_tensors(family, config, model.state_dict()).values():
        for name, value in parts:
            is_head = name.startswith(("classifier", "pre_classifier"))
            file_name = name if is_head else f"{family}.{name}"
            tensors[file_name] = value.cpu().float().contiguous()
    if family == "bert":  # the Classifier has none
        types = torch.zeros(2, config.d_model)
        tensors["bert.embeddings.token_type_embeddings.weight"] = types
    entries = {
        "model_type": family,
        "architectures": [FAMILIES[family].transformers_class],
        "dtype": "float32",
        "problem_type": "single_label_classification",
        "id2label": dict(enumerate(classes)),
        "label2id": {name: i for i, name in enumerate(classes)},
    }
    for field, entry in FAMILIES[family].entries.items():
        entries[entry] = getattr(config, field)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", entries)
    if config.patch:
        write_preprocessor(folder, ImageTransform(**state["transform"]))
    else:
        write_tokenizer(folder, state["tokenizer"], config)
