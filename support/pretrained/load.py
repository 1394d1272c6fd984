"""Loads the weights of a Hugging Face folder for a Classifier.

    pretrained = load_pretrained("FOLDER")
    model = Classifier(pretrained.config)
    initialize(model, seed=1)  # for the parameters that the folder does not have
    model.load_state_dict(pretrained.weights, strict=False)

The folder holds a BERT, RoBERTa, DistilBERT, ViT, DeiT or DINOv2.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.images import ImageTransform
from support.common.errors import UserError, as_user_error
from support.common.key_value_order import from_keys_then_values
from support.pretrained import hf_files
from support.pretrained.families import (
    FAMILIES,
    LAST_LAYERS,
    classifier_config,
    to_file_tensors,
)


@dataclass
class Pretrained:
    """The content of a Hugging Face folder, for a Classifier."""

    config: ClassifierConfig
    weights: dict[str, Tensor]  # in fp32, by the Classifier's names
    names: dict[str, str]  # of each weight: its name in the file
    left_out: list[str]  # tensors of the file that are not used
    tokenizer: str  # serialized; "" for images
    transform: ImageTransform | None  # None for texts
    labels: list[str]  # names of the classes in the file's order, or []


class TensorSource:
    """The tensors of a folder, which are taken out by their names in families.py.

    In a file the names may begin with the family's, and old files name layer norms otherwise.
    """

    def __init__(self, path: Path, family: str):
        self.path = path
        self.tensors = hf_files.read_weights(path)
        self.file_names: dict[str, str] = {}  # by the names in families.py
        for file_name in self.tensors:
            name = file_name.removeprefix(f"{family}.")
            name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
            name = name.replace("LayerNorm.beta", "LayerNorm.bias")
            self.file_names.setdefault(name, file_name)

    def take(self, name: str, *shape: int) -> Tensor:
        """Removes and returns a tensor in fp32.

        Raises UserError if it is missing, of another shape, or has numbers that are not finite.
        """
        tensor = self.tensors.pop(self.file_names.get(name, ""), None)
        if tensor is None or tensor.shape != shape:
            found = "missing" if tensor is None else list(tensor.shape)
            raise UserError(
                f"{self.path}: {name} is {found}, but config.json says {list(shape)}"
            )
        tensor = tensor.float()
        if not tensor.isfinite().all():
            raise UserError(f"{self.path}: {name} has numbers that are not finite")
        return tensor

    def take_num_classes(self) -> int:
        """Returns the number of classes that the last layers in the file have.

        If it is less than two, as for a regression, it removes these layers, so that they count
        as missing, and returns 0.
        """
        names = [name for name in self.file_names if name.rpartition(".")[0] in LAST_LAYERS]
        classes = max((len(self.tensors[self.file_names[name]]) for name in names), default=0)
        if classes >= 2:
            return classes
        for name in names:
            del self.file_names[name]
        return 0


def load_pretrained(folder: str, image_size: int = 0) -> Pretrained:
    """Loads a folder: config.json, the weights, the tokenizer or the preprocessor's config.

    folder: a path, or OWNER/NAME, which is downloaded. image_size: pixels per side, for which
    the positions are interpolated; 0: that of the folder. Raises UserError.
    """
    path = hf_files.find_folder(str(folder))
    entries = hf_files.read_entries(path / "config.json")
    family = str(entries.get("model_type"))
    if family not in FAMILIES:
        hint = ""
        if (path / "metrics.csv").is_file():
            hint = (
                "; this is a run, and --pretrained takes a folder in Hugging Face's format: "
                "classify.py --export makes one of a run that began with --pretrained"
            )
        raise UserError(f"{path}: model_type {family} is none of {', '.join(FAMILIES)}{hint}")
    source = TensorSource(path, family)
    # A DeiT with two last layers, which `take_num_classes` may leave out.
    has_teacher = "cls_classifier.weight" in source.file_names
    classes = source.take_num_classes() or 2

    # `file_config` has the shapes of the file's tensors, `config` those of the Classifier.
    with as_user_error(f"{path}/config.json: the model cannot be used"):
        file_config = classifier_config(entries, family, classes)
        if has_teacher:
            file_config = replace(file_config, pool="first+second")
        # RoBERTa does not use its first positions, up to that with the number of padding.
        first_position = file_config.pad + 1 if family == "roberta" else 0
        config = replace(file_config, max_length=file_config.max_length - first_position)
        transform = None
        if config.patch:
            transform = hf_files.read_preprocessor(path, config.channels, image_size)
            config = replace(config, image_size=transform.output_size)
        id2label = entries.get("id2label") or {}
        labels = [str(id2label[str(i)]) for i in range(len(id2label))]
    weights, names = take_weights(source, entries, family, file_config)
    positions = weights["positions"]
    if family in ("bert", "roberta"):
        num_types = entries.get("type_vocab_size", 2)
        name = "embeddings.token_type_embeddings.weight"
        types = source.take(name, num_types, config.d_model)
        positions = positions + types[0]  # all tokens of a text are of type 0
    positions = positions[first_position:]
    if config.image_size != file_config.image_size:
        positions = resize_positions(positions, file_config, config)
    weights["positions"] = positions
    if family == "dinov2":
        apply_layer_scale(source, weights, file_config)
    left_out = sorted(source.tensors)
    tokenizer = "" if transform else hf_files.read_tokenizer(path, file_config)
    return Pretrained(config, weights, names, left_out, tokenizer, transform, labels)


def take_weights(
    source: TensorSource, entries: dict[str, Any], family: str, config: ClassifierConfig
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the weights of a Classifier, and their names in the file.

    config: the shape of the file's model; entries: of its config.json. Raises UserError if a
    parameter has another shape or is missing, unless it is one of the head.
    """
    if "cls_classifier.weight" in source.file_names:
        merge_teacher(source, config)
    with torch.device("meta"):  # shapes without memory
        state = Classifier(config).state_dict()
    has_no_bias = entries.get("qkv_bias") is False  # then ours are zeros
    weights = {}
    names = {}
    for name, parts in to_file_tensors(family, config, state).items():
        if name.startswith("head.") and not all(part in source.file_names for part, _ in parts):
            continue
        if has_no_bias and name.endswith(("query.bias", "key_value.bias")):
            weights[name] = torch.zeros(state[name].shape)
        else:
            names[name] = ", ".join(source.file_names.get(part, part) for part, _ in parts)
            tensors = [source.take(part, *value.shape) for part, value in parts]
            weights[name] = torch.cat(tensors).reshape(state[name].shape)
            if "key_value." in name:
                weights[name] = from_keys_then_values(weights[name], config.heads)
    return weights, names


def merge_teacher(source: TensorSource, config: ClassifierConfig) -> None:
    """Merges into one the two last layers of a DeiT with a teacher, averaging their logits."""
    heads = ("cls_classifier", "distillation_classifier")
    weights = [source.take(f"{head}.weight", config.classes, config.d_model) for head in heads]
    biases = [source.take(f"{head}.bias", config.classes) for head in heads]
    merged = {"weight": torch.cat(weights, dim=1) / 2, "bias": (biases[0] + biases[1]) / 2}
    for parameter, value in merged.items():
        file_name = ", ".join(f"{head}.{parameter}" for head in heads)
        source.file_names[f"classifier.{parameter}"] = file_name
        source.tensors[file_name] = value


def apply_layer_scale(
    source: TensorSource, weights: dict[str, Tensor], config: ClassifierConfig
) -> None:
    """Multiplies the last layers of DINOv2's sub-layers by the factors that follow them."""
    for n in range(config.layers):
        for i, module in ((1, "attention.out"), (2, "feed_forward.2")):
            scale = source.take(f"encoder.layer.{n}.layer_scale{i}.lambda1", config.d_model)
            weights[f"encoder.{n}.{module}.weight"] *= scale[:, None]
            weights[f"encoder.{n}.{module}.bias"] *= scale


def resize_positions(positions: Tensor, old: ClassifierConfig, new: ClassifierConfig) -> Tensor:
    """Returns positions, (length, d_model), for new.image_size; the prefix keeps its own."""
    prefix = positions[: old.num_prefix_tokens]
    grid = positions[old.num_prefix_tokens :]  # (rows * columns, d_model)
    old_rows = old.image_size // old.patch
    new_rows = new.image_size // new.patch
    grid = F.interpolate(
        grid.T.reshape(1, -1, old_rows, old_rows),
        size=(new_rows, new_rows),
        mode="bicubic",
        align_corners=False,
    )
    return torch.cat([prefix, grid[0].flatten(1).T])
