"""Published weights: from a Hugging Face folder to a Classifier, and back.

found = read_folder("FOLDER", classes=4)     # BERT, RoBERTa, DistilBERT, ViT, DeiT or DINOv2
model = Classifier(found.config)
initialize(model, seed=1)                    # for what found.new names
model.load_state_dict(found.weights, strict=False)
export("OTHER", model, saved)                # for transformers' AutoModelFor...Classification
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.images import Picture
from support.common.errors import UserError
from support.common.files import write_json
from support.pretrained.families import FAMILIES, LAST, family_of, in_file, read_config
from support.pretrained.hf_files import (
    find_folder,
    read_json,
    read_preprocessor,
    read_tensors,
    read_tokenizer,
    refused,
    write_preprocessor,
    write_tokenizer,
)
from support.pretrained.safetensors import in_fp32, write_safetensors


@dataclass
class Pretrained:
    """What a folder holds, for a Classifier."""

    config: ClassifierConfig
    weights: dict[str, Tensor]  # by the Classifier's names
    names: dict[str, str]  # of each weight: what the file calls it
    new: list[str]  # parameters of the Classifier that it lacks
    left_out: list[str]  # tensors of its file that are not used
    tokenizer: str  # serialized; "" for pictures
    picture: Picture | None  # None for texts
    labels: list[str]  # names of the classes in its order, or []


def read_folder(folder: str, classes: int = 0, image_size: int = 0) -> Pretrained:
    """Reads config.json, the weights, and the tokenizer or preprocessor_config.json of a folder.

    folder: a path, or OWNER/NAME, which is fetched. classes: a last layer for another number is
    left out; 0: as many as the folder has. image_size: pixels a side, 0: as the folder has it; for
    another size than the weights' the positions are interpolated. Raises UserError.
    """
    path = find_folder(str(folder))
    said = read_json(path / "config.json")
    kind = str(said.get("model_type"))
    if kind not in FAMILIES:
        raise UserError(f"{path}: model_type {kind} is none of {', '.join(FAMILIES)}")
    tensors, names = read_tensors(path), {}  # names: of the tables: of the file
    for name in tensors:
        plain = name.removeprefix(f"{kind}.").replace("LayerNorm.gamma", "LayerNorm.weight")
        names.setdefault(plain.replace("LayerNorm.beta", "LayerNorm.bias"), name)
    rows = {
        name: (*tensors[names[name]].shape, 0)[0]
        for name in names
        if name.rpartition(".")[0] in LAST
    }
    if len({*rows.values()}) > 1:
        raise UserError(f"{path}: {', '.join(sorted(rows))} are not all of as many classes")
    classes = classes or max([2, *rows.values()])
    names = {name: names[name] for name in names if rows.get(name, classes) == classes}
    with refused(f"{path}/config.json: not of a model that can be used"):
        config = read_config(said, kind, classes, "cls_classifier.weight" in tensors)
        if config.layers > len(tensors):
            raise ValueError(
                f"it has {config.layers:,} layers, the file {len(tensors):,} tensors"
            )
        picture = read_preprocessor(path, config.channels, image_size) if config.patch else None
        size = (picture.crop or picture.size) if picture else 0
        unused = config.pad + 1 if kind == "roberta" else 0  # rows of its positions
        ours = replace(config, image_size=size, max_length=config.max_length - unused)
        with torch.device("meta"):
            state = Classifier(config).state_dict()
        labels = [str(said["id2label"][str(i)]) for i in range(len(said.get("id2label") or {}))]

    def take(name: str, *shape: int) -> Tensor:
        tensor = tensors.pop(names.get(name), None)
        if tensor is None:
            raise UserError(f"{path}: the weights have no {name}, which config.json asks for")
        if tensor.shape != shape:
            raise UserError(
                f"{path}: {name} is {list(tensor.shape)}, config.json says {[*shape]}"
            )
        return in_fp32(tensor, f"{path}: {name}")

    if config.pool == "first+second" and "cls_classifier.weight" in names:
        both = "cls_classifier", "distillation_classifier"  # the mean of their logits
        weight = [take(f"{name}.weight", classes, config.d_model) for name in both]
        bias = [take(f"{name}.bias", classes) for name in both]
        for part, mean in (("weight", torch.cat(weight, dim=1) / 2), ("bias", sum(bias) / 2)):
            names[f"classifier.{part}"] = ", ".join(f"{name}.{part}" for name in both)
            tensors[names[f"classifier.{part}"]] = mean
    weights, new, called = {}, [], {}
    for name, parts in in_file(kind, config, state).items():
        if name.startswith("head.") and not all(source in names for source, _ in parts):
            new.append(name)
        elif said.get("qkv_bias") is False and name.endswith(("query.bias", "key_value.bias")):
            weights[name] = torch.zeros(state[name].shape)
        else:
            called[name] = ", ".join(names.get(source, source) for source, _ in parts)
            whole = torch.cat([take(source, *share.shape) for source, share in parts])
            weights[name] = whole.reshape(state[name].shape)
    if kind in ("bert", "roberta"):
        types = said.get("type_vocab_size", 2), config.d_model
        weights["positions"] += take("embeddings.token_type_embeddings.weight", *types)[0]
        weights["positions"] = weights["positions"][unused:]
    for n in range(config.layers if kind == "dinov2" else 0):  # it scales what layers return
        for i, module in ((1, "attention.out"), (2, "feed_forward.2")):
            scale = take(f"encoder.layer.{n}.layer_scale{i}.lambda1", config.d_model)
            weights[f"encoder.{n}.{module}.weight"] *= scale[:, None]
            weights[f"encoder.{n}.{module}.bias"] *= scale
    if ours.image_size != config.image_size:
        weights["positions"] = resize(weights["positions"], config, ours.image_size)
    return Pretrained(
        ours,
        weights,
        called,
        new,
        sorted(tensors),
        picture=picture,
        labels=labels,
        tokenizer="" if picture else read_tokenizer(path, config),
    )


def resize(positions: Tensor, config: ClassifierConfig, image_size: int) -> Tensor:
    """Positions, (length, d_model), for pictures of another size; the first tokens keep theirs."""
    first, grid = positions[: config.num_prefix_tokens], positions[config.num_prefix_tokens :]
    old, new = config.image_size // config.patch, image_size // config.patch
    grid = F.interpolate(
        grid.T.reshape(1, -1, old, old), size=(new, new), mode="bicubic", align_corners=False
    )
    return torch.cat([first, grid[0].flatten(1).T])


def export(folder: str, model: Classifier, saved: dict) -> None:
    """Writes a folder that transformers opens, with the same logits and names of classes.

    saved: what the task saved. Raises UserError where no class of transformers computes the model.
    """
    config, path, classes = model.config, Path(folder), saved["classes"]
    if not (kind := family_of(config)):
        raise UserError(
            f"{path}: no class of transformers computes this model; they do a BERT, "
            f"RoBERTa, DistilBERT, ViT, DeiT without a teacher, with their own heads"
        )
    tensors = {}
    for parts in in_file(kind, config, model.state_dict()).values():
        for name, share in parts:
            bare = name.startswith(("classifier", "pre_classifier"))
            tensors[name if bare else f"{kind}.{name}"] = share
    if kind == "bert":
        tensors["bert.embeddings.token_type_embeddings.weight"] = torch.zeros(2, config.d_model)
    config_json = {
        "model_type": kind,
        "architectures": [FAMILIES[kind].exported_as],
        "dtype": "float32",
        "problem_type": "single_label_classification",
        "id2label": dict(enumerate(classes)),
        "label2id": {name: i for i, name in enumerate(classes)},
        **{entry: getattr(config, field) for field, entry in FAMILIES[kind].entries.items()},
    }
    path.mkdir(parents=True, exist_ok=True)
    write_safetensors(path / "model.safetensors", tensors)
    write_json(path / "config.json", config_json)
    if config.patch:
        write_preprocessor(path, Picture(**saved["picture"]))
    else:
        write_tokenizer(path, saved["tokenizer"], config)
