"""How families of published models name what the Classifier has: tables, and how to read them."""

from typing import NamedTuple

from torch import Tensor

from support.classification.classifier import ClassifierConfig


class Family(NamedTuple):
    """How the models of one family are written down."""

    modules: dict[str, str]  # of the Classifier: of the file
    entries: dict[str, str]  # fields of ClassifierConfig: entries of config.json
    common: dict[str, object]  # fields that config.json does not say, or an old one lacks
    exported_as: str = ""  # a class of transformers, where one computes the same


# A file's module has two names where it keeps apart what ours has in one matrix. "#": within a
# layer, which begins with "encoder.N." for us, and with "encoder.layer.N." there.
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
    "first": "embeddings.cls_token",
    "positions": "embeddings.position_embeddings",
    "#attention.query": "#attention.attention.query",
    "#attention.key_value": "#attention.attention.key #attention.attention.value",
    "#residuals.0.norm": "#layernorm_before",
    "#residuals.1.norm": "#layernorm_after",
    "head.1": "classifier",
}
DEIT = VIT | {"first": "embeddings.cls_token embeddings.distillation_token"}
DINOV2 = VIT | {
    "#residuals.0.norm": "#norm1",
    "#residuals.1.norm": "#norm2",
    "#feed_forward.0": "#mlp.fc1",
    "#feed_forward.2": "#mlp.fc2",
}
LAST = ("classifier", "classifier.out_proj", "cls_classifier", "distillation_classifier")

SIZES = dict(
    layers="num_hidden_layers",
    d_model="hidden_size",
    heads="num_attention_heads",
    d_ff="intermediate_size",
    dropout="hidden_dropout_prob",
    activation="hidden_act",
    epsilon="layer_norm_eps",
    head_dropout="classifier_dropout",
)
TEXT = dict(vocab_size="vocab_size", max_length="max_position_embeddings", pad="pad_token_id")
PICTURE = dict(patch="patch_size", channels="num_channels", image_size="image_size")
DISTILBERT_SIZES = dict(
    layers="n_layers",
    d_model="dim",
    heads="n_heads",
    d_ff="hidden_dim",
    dropout="dropout",
    activation="activation",
    head_dropout="seq_classif_dropout",
)

POST = dict(
    bias=True,
    positions="learned",
    pool="first",
    epsilon=1e-12,
    norm="post",
    num_prefix_tokens=0,
    patch=0,
    pad=0,
    head="tanh",
)
PRE = dict(
    bias=True,
    positions="learned",
    pool="first",
    epsilon=1e-12,
    norm="pre",
    num_prefix_tokens=1,
    vocab_size=0,
    head="",
)
FAMILIES = {
    "bert": Family(BERT, SIZES | TEXT, POST, "BertForSequenceClassification"),
    "roberta": Family(ROBERTA, SIZES | TEXT, POST | {"pad": 1}),  # exported as a BERT
    "distilbert": Family(
        DISTILBERT,
        DISTILBERT_SIZES | TEXT,
        POST | {"head": "relu"},
        "DistilBertForSequenceClassification",
    ),
    "vit": Family(VIT, SIZES | PICTURE, PRE, "ViTForImageClassification"),
    "deit": Family(
        DEIT, SIZES | PICTURE, PRE | {"num_prefix_tokens": 2}, "DeiTForImageClassification"
    ),
    "dinov2": Family(DINOV2, SIZES | PICTURE, PRE | {"pool": "first+mean", "epsilon": 1e-6}),
}
# Entries of config.json that may have one value only.
ONLY = dict(position_embedding_type="absolute", is_decoder=False, use_swiglu_ffn=False)


def read_config(said: dict, kind: str, classes: int, distilled: bool) -> ClassifierConfig:
    """The shape of the model that config.json describes. Raises ValueError, TypeError, KeyError.

    distilled: whether it has two last layers, as a DeiT that had a teacher.
    """
    for name, value in ONLY.items():
        if said.get(name, value) != value:
            raise ValueError(f"{name} is {said[name]}")
    if kind == "dinov2":
        said = said | {"intermediate_size": int(said["mlp_ratio"] * said["hidden_size"])}
    _, entries, common, _ = FAMILIES[kind]
    fields = common | {"head_dropout": said.get("hidden_dropout_prob"), "label_smoothing": 0.0}
    fields |= {
        field: said[name] for field, name in entries.items() if said.get(name) is not None
    }
    fields |= {"pool": "first+second"} if distilled else {}
    if missing := [name for field, name in entries.items() if field not in fields]:
        raise ValueError(f"it has no {missing[0]}")
    return ClassifierConfig(classes=classes, **fields)


def family_of(config: ClassifierConfig) -> str:
    """The family of which transformers has a class that computes this model; "" for none."""
    return next(
        (
            kind
            for kind, family in FAMILIES.items()
            if family.exported_as
            and all(
                getattr(config, field) == value
                for field, value in family.common.items()
                if field not in family.entries
            )
        ),
        "",
    )


def in_file(
    kind: str, config: ClassifierConfig, state: dict[str, Tensor]
) -> dict[str, list[tuple[str, Tensor]]]:
    """Of each parameter of a Classifier its name in a file, and its value in the shape there.

    Where the file has two tensors, both names, each with its share of the value.
    """
    layer = "transformer.layer" if kind == "distilbert" else "encoder.layer"
    table = {
        ours.replace("#", f"encoder.{n}."): theirs.replace("#", f"{layer}.{n}.")
        for n in range(config.layers)
        for ours, theirs in FAMILIES[kind].modules.items()
    }
    shapes = (
        {
            "embedding.weight": (-1, config.channels, config.patch, config.patch),
            "first": (1, 1, -1),
            "positions": (1, -1, config.d_model),
        }
        if config.patch
        else {}
    )
    found = {}
    for name, value in state.items():
        module, _, part = name.rpartition(".")
        sources = [f"{source}.{part}" for source in table.get(module, "").split()]
        sources = sources or table[name].split()  # "first" and "positions" are no modules
        shares = [
            share.reshape(shapes.get(name, share.shape)) for share in value.chunk(len(sources))
        ]
        found[name] = list(zip(sources, shares))
    return found
