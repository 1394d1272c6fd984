"""Adapts pretrained weights to a corpus and a run: to its classes, lengths and pooling."""

from dataclasses import replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.corpus import Labelled
from support.common.errors import UserError


def adapt(
    pretrained, args, classes: list[str]
) -> tuple[ClassifierConfig, dict[str, Tensor], str]:
    """Returns the model's config, the weights that it begins with, and a line about them.

    pretrained: what `load_pretrained` in support/pretrained/load.py returns. The last layer is
    kept, its rows in the order of `classes`, if it knows all of these. Raises UserError if the
    flags do not fit the weights.
    """
    config = adapted_config(pretrained.config, args, len(classes))
    with torch.device("meta"):  # names without memory
        model = Classifier(config)
    names = model.state_dict().keys()
    weights = {name: value for name, value in pretrained.weights.items() if name in names}
    if not config.patch:
        weights["positions"] = weights["positions"][: args.max_length]
    rows = [] if args.pool == "mean" else rows_of(classes, pretrained)
    last_layer = f"head.{len(model.head) - 1}"
    for name in (f"{last_layer}.weight", f"{last_layer}.bias"):
        last = weights.pop(name, None)
        if last is not None and rows:
            weights[name] = last[rows]
    unused = pretrained.weights.keys() - weights.keys()
    left_out = [*pretrained.left_out, *(pretrained.names[name] for name in unused)]
    new = ", ".join(sorted(names - weights.keys())) or "no weights"
    dropped = ", ".join(sorted(left_out)) or "none"
    return config, weights, f"{args.pretrained}: new are {new}; left out: {dropped}"


def check_fits(pretrained, args, corpus: Labelled) -> None:
    """Raises UserError if the model reads no such examples, or none of this --max-length."""
    modality = "image" if pretrained.config.patch else "text"
    if modality != corpus.modality:
        raise UserError(
            f"--pretrained loads a model of {modality}s, but {corpus.name} has "
            f"{corpus.modality}s"
        )
    if modality == "text":
        tokenizer = Tokenizer.from_str(pretrained.tokenizer)
        special_tokens = tokenizer.num_special_tokens_to_add(False)
        smallest = special_tokens + 1
        largest = pretrained.config.max_length
        if not smallest <= args.max_length <= largest:
            raise UserError(
                f"--max-length {args.max_length}: with the weights of {args.pretrained} it "
                f"must be from {smallest} to {largest}"
            )


def rows_of(classes: list[str], pretrained) -> list[int]:
    """Returns the row of each class in the pretrained last layer; [] if one is unknown."""
    labels = pretrained.labels[: pretrained.config.classes]  # config.json may name more
    if not set(classes) <= set(labels):
        return []
    return [labels.index(name) for name in classes]


def adapted_config(config: ClassifierConfig, args, num_classes: int) -> ClassifierConfig:
    """Returns the pretrained shape with the flags of this run. Raises UserError."""
    kwargs = {
        "classes": num_classes,
        "dropout": args.dropout,
        "head_dropout": args.dropout,
        "label_smoothing": args.label_smoothing,
        "plain": args.plain,
    }
    if not config.patch:
        kwargs["max_length"] = args.max_length
    if args.pool == "mean":
        kwargs |= {"pool": "mean", "head": ""}
    try:
        return replace(config, **kwargs)
    except ValueError as problem:
        raise UserError(str(problem)) from problem
