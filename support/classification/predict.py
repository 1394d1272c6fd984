"""A trained Classifier, and what it says of new texts and pictures."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.examples import encode_texts, normalize
from support.classification.images import Picture
from support.common.checkpoint import load
from support.common.errors import UserError, first_line


def load_classifier(path: Path) -> tuple[Classifier, dict]:
    """The model of a checkpoint, ready to classify, and what else the task saved. UserError."""
    saved = (content := load(path))["task"]
    try:
        model = Classifier(ClassifierConfig(**saved["config"]))
        model.load_state_dict(content["model"])
    except Exception as problem:
        raise UserError(
            f"{path}: not a whole checkpoint of a classifier ({first_line(problem)})"
        ) from problem
    return model.eval(), saved


@torch.inference_mode()
def logits(
    model: Classifier, saved: dict, examples: list, batch_size: int = 32
) -> tuple[Tensor, int]:
    """(examples, classes) in fp32, and how many texts were cut.

    examples: texts, or pictures (channels, height, width) in bytes.
    """
    device = next(model.parameters()).device
    found = torch.empty(len(examples), model.config.classes)
    if saved["picture"]:
        order, cut = np.arange(len(examples)), 0
    else:
        tokenizer = Tokenizer.from_str(saved["tokenizer"])
        ids, cut = encode_texts(tokenizer, examples, model.config.max_length)
        order = np.argsort([-len(text) for text in ids], kind="stable")  # like lengths together
    for rows in (
        np.split(order, range(batch_size, len(order), batch_size)) if len(order) else []
    ):
        if saved["picture"]:
            x = normalize(
                np.stack([examples[row] for row in rows]), Picture(**saved["picture"])
            )
        else:
            longest = max(1, max(len(ids[row]) for row in rows))
            x = torch.tensor(
                [ids[row] + [model.config.pad] * (longest - len(ids[row])) for row in rows]
            )
        found[torch.from_numpy(rows)] = model.score(x.to(device)).cpu()
    return found, cut
