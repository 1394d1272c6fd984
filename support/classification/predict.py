"""A trained Classifier, for new texts and images.

Example:
    predictor = Predictor(*find_checkpoint(Path("logs/RUN"), "classification"), "cpu")
    probabilities = predictor(["Wo wohnt der Mann?"])  # (1, classes)
"""

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
from support.common.errors import as_user_error
from support.common.kernels import speed_up

BATCH_SIZES = {"cpu": 32, "cuda": 512}  # examples; a GPU needs more of them to be busy


class Predictor:
    """A trained Classifier, ready to use: texts or images in, probabilities out."""

    def __init__(self, path: Path, checkpoint: dict[str, Any], device: str):
        """path, checkpoint: a file and its content; device: "cpu" or "cuda".

        Raises UserError.
        """
        self.path = path
        self.device = device
        self.flags = checkpoint["flags"]  # of the run that trained the model
        self.saved = checkpoint["task"]
        self.transform = None
        with as_user_error(f"{path}: not a complete checkpoint of a classifier"):
            self.classes = self.saved["classes"]
            if self.saved["transform"]:
                self.transform = ImageTransform(**self.saved["transform"])
            else:
                self.tokenizer = Tokenizer.from_str(self.saved["tokenizer"])
            self.model = Classifier(ClassifierConfig(**self.saved["config"]), self.transform)
            self.model.load_state_dict(checkpoint["model"])
        speed_up(self.model.eval().to(device), device)
        self.modality = "image" if self.transform else "text"
        self.num_examples = 0
        self.num_cut = 0  # texts that were longer than the model allows

    @torch.inference_mode()
    def __call__(self, examples: list) -> Tensor:
        """Returns probabilities, (examples, classes), on the CPU.

        examples: texts, or images, (channels, height, width) bytes.
        """
        config = self.model.config
        order = np.arange(len(examples))
        if not self.transform:
            ids, num_cut = encode_texts(self.tokenizer, examples, config.max_length)
            self.num_cut += num_cut
            # Texts of similar lengths need little padding.
            order = np.argsort([-len(text) for text in ids], kind="stable")
        self.num_examples += len(examples)
        batch_size = BATCH_SIZES[self.device]
        logits = torch.empty(len(examples), config.classes)
        for first in range(0, len(examples), batch_size):
            rows = order[first : first + batch_size]
            if self.transform:
                x = torch.from_numpy(np.stack([examples[row] for row in rows]))
            else:
                texts = [torch.tensor(ids[row] or [config.pad]) for row in rows]
                x = pad_sequence(texts, batch_first=True, padding_value=config.pad)
            logits[torch.from_numpy(rows)] = self.model(x.to(self.device)).cpu()
        return logits.softmax(-1)
