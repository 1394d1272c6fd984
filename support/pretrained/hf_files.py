"""The files of a Hugging Face folder: weights, tokenizer and preprocessor, read and written."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from tokenizers import BertWordPieceTokenizer, Tokenizer
from torch import Tensor

from support.classification.classifier import ClassifierConfig
from support.classification.images import ImageTransform
from support.common.checkpoint import unpickle
from support.common.errors import UserError, as_user_error
from support.common.files import read_json, write_json
from support.corpora.tables import read_lines

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
PROCESSOR_ENTRIES = ("image_processor_type", "feature_extractor_type")
RESAMPLES = {2: "bilinear", 3: "bicubic"}  # by Pillow's numbers, which the files use


def find_folder(name: str) -> Path:
    """Returns the folder `name`, or downloads the model OWNER/NAME. Raises UserError."""
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1:
        raise UserError(f"{name}: no such folder")
    with as_user_error(f"{name}: no such folder, and it cannot be downloaded"):
        from huggingface_hub import snapshot_download  # installed with tokenizers

        for weights in WEIGHTS:
            patterns = ["*.json", "vocab.txt", weights]
            path = Path(snapshot_download(name, allow_patterns=patterns))
            if (path / weights).is_file():
                break
        return path


def read_entries(path: Path) -> dict[str, Any]:
    """Returns the entries of a JSON file. Raises UserError."""
    with as_user_error(f"{path}: cannot be read"):
        return {**read_json(path)}  # a list or a number raises TypeError


# --- Weights


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Returns the weights in a folder, by their names there. Raises UserError."""
    paths = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not paths:
        raise UserError(f"{folder}: there is no {' and no '.join(WEIGHTS)}")
    path = paths[0]
    with as_user_error(f"{path}: not a complete file of tensors"):
        if path.suffix == ".safetensors":
            return load_file(path)
        return {str(name): tensor.detach() for name, tensor in unpickle(path).items()}


# --- Tokenizer


def read_tokenizer(folder: Path, config: ClassifierConfig) -> str:
    """Returns a serialized tokenizer that neither pads nor truncates. Raises UserError."""
    with as_user_error(f"{folder}: its tokenizer cannot be used"):
        if (folder / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        elif (folder / "vocab.txt").is_file():
            tokenizer = tokenizer_of_vocabulary(folder)
        else:
            raise ValueError("there is no tokenizer.json and no vocab.txt")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if config.pad < 0:
            raise ValueError(f"config.json pads with token {config.pad}, which no weights have")
        largest_id = max([config.pad, *tokenizer.get_vocab().values()])
        if largest_id >= config.vocab_size:
            raise ValueError(
                f"it needs token {largest_id}, but the weights have {config.vocab_size} tokens"
            )
        pads = {tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>")}
        other_pads = pads - {None, config.pad}
        if other_pads:
            raise ValueError(
                f"it pads with token {other_pads.pop()}, but config.json with {config.pad}"
            )
        return tokenizer.to_str()


def tokenizer_of_vocabulary(folder: Path) -> Tokenizer:
    """Returns the tokenizer of an older folder, which has only vocab.txt."""
    config = {}
    if (folder / "tokenizer_config.json").is_file():
        config = read_entries(folder / "tokenizer_config.json")
    words = {word: i for i, word in enumerate(read_lines(folder / "vocab.txt"))}
    tokenizer = BertWordPieceTokenizer(
        words,
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),  # None: as `lowercase`
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    return Tokenizer.from_str(tokenizer.to_str())


def write_tokenizer(folder: Path, serialized: str, config: ClassifierConfig) -> None:
    """Writes the files that AutoTokenizer of transformers needs."""
    (folder / "tokenizer.json").write_text(serialized, encoding="utf-8")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "pad_token": Tokenizer.from_str(serialized).id_to_token(config.pad),
        "model_input_names": ["input_ids", "attention_mask"],
    }
    write_json(folder / "tokenizer_config.json", tokenizer_config)


# --- Preprocessor


def read_preprocessor(folder: Path, channels: int, image_size: int) -> ImageTransform:
    """Returns how preprocessor_config.json prepares images. Raises UserError.

    image_size: pixels per side of the output, to which the sizes are scaled; 0: the file's.
    """
    path = folder / "preprocessor_config.json"
    config = read_entries(path)
    with as_user_error(f"{path}: cannot be used"):
        for name in ("image_mean", "image_std"):
            if len(config[name]) != channels:
                raise ValueError(f"{name} is not for {channels} channels")
        for name in ("do_rescale", "do_normalize"):
            if not config.get(name, True):
                raise ValueError(f"{name} is {config[name]}, but only true is supported")
        resample = config.get("resample", 2)
        if resample not in RESAMPLES:
            raise ValueError(f"resample {resample} is neither 2 (bilinear) nor 3 (bicubic)")
        size = edge(config["size"])
        crop = edge(config["crop_size"]) if config.get("do_center_crop") else 0
        if image_size:
            size = round(size * image_size / (crop or size))
            crop = image_size if crop else 0
        # Pixels from 0 to 255 are multiplied by rescale_factor before they are normalized;
        # those of an ImageTransform are divided by 255.
        scale = 255 * config.get("rescale_factor", 1 / 255)
        return ImageTransform(
            size,
            channels,
            RESAMPLES[resample],
            crop,
            mean=[value / scale for value in config["image_mean"]],
            std=[value / scale for value in config["image_std"]],
            square=crop > 0 and resizes_both_edges(config),
        )


def resizes_both_edges(config: dict[str, Any]) -> bool:
    """Returns whether both edges of an image become equal, or only the shorter one is given."""
    if isinstance(config["size"], dict):
        return "height" in config["size"]
    # In an older file the size is a number; DeiT's processor took it for both edges.
    return "DeiT" in str([config.get(name) for name in PROCESSOR_ENTRIES])


def edge(size: int | dict[str, int]) -> int:
    """Returns the pixels per side. size: this number, {"shortest_edge": n}, or both edges."""
    if isinstance(size, int):
        return size
    return size.get("shortest_edge") or size["height"]


def write_preprocessor(folder: Path, transform: ImageTransform) -> None:
    """Writes the file that AutoImageProcessor of transformers needs."""
    processor = "DeiTImageProcessor" if transform.square else "ViTImageProcessor"
    size = {"height": transform.size, "width": transform.size}
    if transform.crop and not transform.square:
        processor = "BitImageProcessor"
        size = {"shortest_edge": transform.size}
    config = {
        "image_processor_type": processor,
        "size": size,
        "do_center_crop": transform.crop > 0,
        "crop_size": {"height": transform.crop, "width": transform.crop},
        "resample": 3 if transform.resample == "bicubic" else 2,
        "rescale_factor": 1 / 255,
        "image_mean": transform.mean,
        "image_std": transform.std,
    }
    write_json(folder / "preprocessor_config.json", config)
