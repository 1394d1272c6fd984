"""How families of pretrained models name the parameters and fields that a Classifier has."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from support.classification.classifier import ClassifierConfig
from support.common.key_value_order import to_keys_then_values


@dataclass
class Family:
    """The names that the models of one family have in their files."""

    modules: dict[str, str]  # {module of the Classifier: its name, or two names, in the file}
    entries: dict[str, str]  # {field of ClassifierConfig: its entry in config.json}
    defaults: dict[str, Any]  # {field: its value where config.json has no such entry}
    transformers_class: str = ""  # which computes the same, if there is one


# If the file has two modules for one of ours, both names are given: ours is their
# concatenation. "#" stands for a layer: "encoder.N." here, and in the file "encoder.layer.N.",
# or in DistilBERT's "transformer.layer.N.". "head.N" is module N of `make_head`
# (support/classification/classifier.py): with a hidden layer that is 0, and the last layer 3;
# without one the last layer is 1. Names that a Classifier does not have are not looked up.
BERT = {
    "embedding": "embeddings.word_embeddings",
    "norm": "embeddings.LayerNorm",
    "positions": "embeddings.position_embeddings.weight",
    "#attention.query": "#attention.self.query",
    "#attention.out": "#attention.output.dense",
    "#attention.key_value": "#attention.self.key #attention.self.value",
    "#residuals.0.norm": "#attention.output.LayerNorm",
    "#residuals.1.norm": "#output.LayerNorm",
    "#feed_forward.0": "#intermediate.dense",
    "#feed_forward.2": "#output.dense",
    "head.0": "pooler.dense",
    "head.3": "classifier",
}
ROBERTA = BERT | {"head.0": "classifier.dense", "head.3": "classifier.out_proj"}
DISTILBERT = BERT | {
    "#attention.query": "#attention.q_lin",
    "#attention.out": "#attention.out_lin",
    "#attention.key_value": "#attention.k_lin #attention.v_lin",
    "#residuals.0.norm": "#sa_layer_norm",
    "#residuals.1.norm": "#output_layer_norm",
    "#feed_forward.0": "#ffn.lin1",
    "#feed_forward.2": "#ffn.lin2",
    "head.0": "pre_classifier",
}
VIT = BERT | {
    "embedding": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
    "prefix_tokens": "embeddings.cls_token",
    "positions": "embeddings.position_embeddings",
    "#attention.query": "#attention.attention.query",
    "#attention.key_value": "#attention.attention.key #attention.attention.value",
    "#residuals.0.norm": "#layernorm_before",
    "#residuals.1.norm": "#layernorm_after",
    "head.1": "classifier",
}
DEIT = VIT | {"prefix_tokens": "embeddings.cls_token embeddings.distillation_token"}
DINOV2 = VIT | {
    "#residuals.0.norm": "#norm1",
    "#residuals.1.norm": "#norm2",
    "#feed_forward.0": "#mlp.fc1",
    "#feed_forward.2": "#mlp.fc2",
}
# The names in files of a last layer, whose rows are the classes.
LAST_LAYERS = ("classifier", "classifier.out_proj", "cls_classifier", "distillation_classifier")

SIZES = {
    "layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "heads": "num_attention_heads",
    "d_ff": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "activation": "hidden_act",
    "epsilon": "layer_norm_eps",
    "head_dropout": "classifier_dropout",
}
DISTILBERT_SIZES = {
    "layers": "n_layers",
    "d_model": "dim",
    "heads": "n_heads",
    "d_ff": "hidden_dim",
    "dropout": "dropout",
    "activation": "activation",
    "head_dropout": "seq_classif_dropout",
}
TEXT_ENTRIES = {
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "pad": "pad_token_id",
}
IMAGE_ENTRIES = {"patch": "patch_size", "channels": "num_channels", "image_size": "image_size"}

DEFAULTS = {"bias": True, "positions": "learned", "pool": "first", "epsilon": 1e-12}
TEXT = DEFAULTS | {"norm": "post", "num_prefix_tokens": 0, "patch": 0, "pad": 0, "head": "tanh"}
IMAGE = DEFAULTS | {"norm": "pre", "num_prefix_tokens": 1, "vocab_size": 0, "head": ""}

FAMILIES = {
    "bert": Family(BERT, SIZES | TEXT_ENTRIES, TEXT, "BertForSequenceClassification"),
    # No class: what would be exported as a RoBERTa is exported as a BERT.
    "roberta": Family(ROBERTA, SIZES | TEXT_ENTRIES, TEXT | {"pad": 1}),
    "distilbert": Family(
        DISTILBERT,
        DISTILBERT_SIZES | TEXT_ENTRIES,
        TEXT | {"head": "relu"},
        "DistilBertForSequenceClassification",
    ),
    "vit": Family(VIT, SIZES | IMAGE_ENTRIES, IMAGE, "ViTForImageClassification"),
    "deit": Family(
        DEIT,
        SIZES | IMAGE_ENTRIES,
        IMAGE | {"num_prefix_tokens": 2},
        "DeiTForImageClassification",
    ),
    "dinov2": Family(
        DINOV2, SIZES | IMAGE_ENTRIES, IMAGE | {"pool": "first+mean", "epsilon": 1e-6}
    ),
}
# Entries of config.json for which the Classifier supports this value alone.
SUPPORTED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "use_swiglu_ffn": False,
}


def classifier_config(config: dict[str, Any], family: str, classes: int) -> ClassifierConfig:
    """Returns the shape of the model that config.json describes.

    config: the entries of config.json. Raises ValueError, TypeError or KeyError.
    """
    for name, value in SUPPORTED.items():
        if config.get(name, value) != value:
            raise ValueError(f"{name} is {config[name]}, but only {value} is supported")
    if family == "dinov2":
        d_ff = int(config["mlp_ratio"] * config["hidden_size"])
        config = config | {"intermediate_size": d_ff}
    entries = FAMILIES[family].entries
    fields = FAMILIES[family].defaults | {"label_smoothing": 0.0}
    fields["head_dropout"] = config.get(entries["dropout"])  # unless it has an entry of its own
    for field, entry in entries.items():
        if config.get(entry) is not None:
            fields[field] = config[entry]
        elif field not in fields:
            raise ValueError(f"it has no {entry}")
    return ClassifierConfig(classes=classes, **fields)


def exportable_family(config: ClassifierConfig) -> str:
    """Returns the family whose class in transformers computes this model; "" if none does."""
    for name, family in FAMILIES.items():
        is_same = all(
            getattr(config, field) == value
            for field, value in family.defaults.items()
            if field not in family.entries  # config.json can have any value of these
        )
        if family.transformers_class and is_same:
            return name
    return ""


def to_file_tensors(
    family: str, config: ClassifierConfig, state: dict[str, Tensor]
) -> dict[str, list[tuple[str, Tensor]]]:
    """Returns, for each parameter of a Classifier, the (name, value) of its tensors in a file.

    There are two tensors if the parameter is their concatenation. state: the Classifier's
    state_dict, which may be on the meta device if only names and shapes matter.
    """
    layer = "transformer.layer" if family == "distilbert" else "encoder.layer"
    modules = {
        ours.replace("#", f"encoder.{n}."): theirs.replace("#", f"{layer}.{n}.")
        for n in range(config.layers)
        for ours, theirs in FAMILIES[family].modules.items()
    }
    file_shapes: dict[str, tuple[int, ...]] = {}
    if config.patch:
        file_shapes = {
            "embedding.weight": (-1, config.channels, config.patch, config.patch),
            "prefix_tokens": (1, 1, -1),
            "positions": (1, -1, config.d_model),
        }
    tensors = {}
    for name, value in state.items():
        if name in modules:  # "prefix_tokens" and "positions" are parameters, not modules
            names = modules[name].split()
        else:
            module, _, parameter = name.rpartition(".")
            names = [f"{theirs}.{parameter}" for theirs in modules[module].split()]
        if "key_value." in name:
            value = to_keys_then_values(value, config.heads)
        values = list(value.chunk(len(names)))
        if name in file_shapes:
            values = [value.reshape(file_shapes[name]) for value in values]
        tensors[name] = list(zip(names, values))
    return tensors
