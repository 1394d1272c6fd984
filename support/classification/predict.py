"""A trained Classifier and its predictions for new texts and images."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.encoding import encode_texts
from support.classification.images import ImageTransform
from support.common.checkpoint import load
from support.common.errors import as_user_error

BATCH_SIZES = {"cpu": 32, "cuda": 512}  # examples: more keep a GPU busy


def load_classifier(path: Path) -> tuple[Classifier, dict[str, Any]]:
    """Returns a checkpoint's model, in eval mode, and what the task saved. Raises UserError."""
    checkpoint = load(path)
    saved = checkpoint["task"]
    with as_user_error(f"{path}: not a complete checkpoint of a classifier"):
        transform = ImageTransform(**saved["transform"]) if saved["transform"] else None
        model = Classifier(ClassifierConfig(**saved["config"]), transform)
        model.load_state_dict(checkpoint["model"])
    return model.eval(), saved


@torch.inference_mode()
def predict_logits(
    model: Classifier, saved: dict[str, Any], examples: list
) -> tuple[Tensor, int]:
    """Returns logits in fp32, (examples, classes), and how many texts were cut.

    saved: what the task saved; examples: texts, or images as bytes, (channels, height, width).
    """
    num_cut = 0
    pad = model.config.pad
    order = np.arange(len(examples))
    if not model.transform:
        tokenizer = Tokenizer.from_str(saved["tokenizer"])
        ids, num_cut = encode_texts(tokenizer, examples, model.config.max_length)
        # Texts of similar lengths are padded little.
        order = np.argsort([-len(text) for text in ids], kind="stable")
    device = next(model.parameters()).device
    batch_size = BATCH_SIZES[device.type]
    logits = torch.empty(len(examples), model.config.classes)
    for first in range(0, len(examples), batch_size):
        rows = order[first : first + batch_size]
        if model.transform:
            x = torch.from_numpy(np.stack([examples[row] for row in rows]))
        else:
            texts = [torch.tensor(ids[row] or [pad]) for row in rows]
            x = pad_sequence(texts, batch_first=True, padding_value=pad)
        logits[torch.from_numpy(rows)] = model(x.to(device)).cpu()
    return logits, num_cut
