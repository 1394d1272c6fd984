"""The files of a Hugging Face folder, one by one; support/pretrained/pretrained.py puts them together."""

import json
from contextlib import contextmanager
from pathlib import Path

from tokenizers import BertWordPieceTokenizer, Tokenizer
from torch import Tensor

from support.classification.classifier import ClassifierConfig
from support.classification.images import Picture
from support.common.checkpoint import unpickle
from support.common.errors import UserError
from support.common.files import write_json
from support.corpora.tables import read_lines
from support.pretrained.safetensors import read_safetensors

WEIGHTS = ["model.safetensors", "pytorch_model.bin"]


@contextmanager
def refused(what: str):
    """Makes UserError of whatever the block raises: `what` and the reason, in one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as problem:  # spoilt files fail in many ways
        reason = f"there is no {problem}" if isinstance(problem, KeyError) else str(problem)
        reason = " ".join(reason.split()).split(". ")[0] or type(problem).__name__
        raise UserError(f"{what} ({reason[:200]})") from problem


def find_folder(name: str) -> Path:
    """The folder `name`, or that of the model OWNER/NAME, which is fetched. Raises UserError."""
    if Path(name).is_dir():
        return Path(name)
    if name.count("/") != 1:
        raise UserError(f"{name}: no such folder")
    with refused(f"{name}: no such folder here, and it cannot be fetched"):
        from huggingface_hub import snapshot_download  # it comes with tokenizers

        for weights in WEIGHTS:
            path = Path(
                snapshot_download(name, allow_patterns=["*.json", "vocab.txt", weights])
            )
            if (path / weights).is_file():
                break
        return path


def read_json(path: Path) -> dict:
    """The entries of a JSON file. Raises UserError."""
    with refused(f"{path}: cannot be read"):
        return {**json.loads(path.read_text(encoding="utf-8"))}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The weights in a folder, by their names there. Raises UserError."""
    file = next((path / name for name in WEIGHTS if (path / name).is_file()), None)
    if not file:
        raise UserError(f"{path}: there is no {' and no '.join(WEIGHTS)}")
    with refused(f"{file}: not a whole file of tensors"):
        if file.suffix == ".safetensors":
            return read_safetensors(file)
        return {str(name): tensor.detach() for name, tensor in unpickle(file).items()}


def read_tokenizer(path: Path, config: ClassifierConfig) -> str:
    """The tokenizer in a folder, serialized, without padding and truncation. Raises UserError."""
    with refused(f"{path}: its tokenizer cannot be used"):
        if (path / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        elif (path / "vocab.txt").is_file():
            how = path / "tokenizer_config.json"
            lower = not how.is_file() or read_json(how).get("do_lower_case", True)
            words = {word: i for i, word in enumerate(read_lines(path / "vocab.txt"))}
            made = BertWordPieceTokenizer(words, lowercase=lower)
            tokenizer = Tokenizer.from_str(made.to_str())
        else:
            raise ValueError("there is no tokenizer.json and no vocab.txt")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        last = max([config.pad, *tokenizer.get_vocab().values()])
        if last >= config.vocab_size or config.pad < 0:
            raise ValueError(
                f"it needs token {last}, the weights have {config.vocab_size} tokens"
            )
        for pad in map(tokenizer.token_to_id, ("[PAD]", "<pad>")):
            if pad not in (None, config.pad):
                raise ValueError(f"it pads with token {pad}, config.json with {config.pad}")
        return tokenizer.to_str()


def read_preprocessor(path: Path, channels: int, image_size: int) -> Picture:
    """How preprocessor_config.json prepares pictures, or as much for pictures of image_size.

    Raises UserError.
    """
    said = read_json(path / "preprocessor_config.json")
    with refused(f"{path}/preprocessor_config.json: cannot be used"):
        edges = said["size"], said["crop_size"] if said.get("do_center_crop") else 0
        size, crop = (
            edge if isinstance(edge, int) else edge.get("shortest_edge") or edge["height"]
            for edge in edges
        )
        if image_size:
            size, crop = round(size * image_size / (crop or size)), image_size if crop else 0
        factor = 255 * said.get("rescale_factor", 1 / 255)  # a Picture's is 1
        mean, std = ([x / factor for x in said[name]] for name in ("image_mean", "image_std"))
        if len(mean) != channels or len(std) != channels:
            raise ValueError(f"image_mean or image_std is not for {channels} channels")
        for name in ("do_rescale", "do_normalize"):
            if not said.get(name, True):
                raise ValueError(f"{name} is {said[name]}")
        resample = {2: "bilinear", 3: "bicubic"}.get(said.get("resample", 2))
        if not resample:
            raise ValueError(
                f"resample {said['resample']} is neither 2, bilinear, nor 3, bicubic"
            )
        kind = str(said.get("image_processor_type") or said.get("feature_extractor_type"))
        square = crop > 0 and (
            "height" in said["size"]
            if isinstance(said["size"], dict)
            else kind.startswith("DeiT")
        )  # it makes of 256 a square
        return Picture(size, channels, resample, crop, mean, std, square)


def write_tokenizer(path: Path, serialized: str, config: ClassifierConfig) -> None:
    """What AutoTokenizer of transformers needs."""
    (path / "tokenizer.json").write_text(serialized, encoding="utf-8")
    write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.max_length,
            "pad_token": Tokenizer.from_str(serialized).id_to_token(config.pad),
            "model_input_names": ["input_ids", "attention_mask"],
        },
    )


def write_preprocessor(path: Path, picture: Picture) -> None:
    """What AutoImageProcessor of transformers needs."""
    size, crop = picture.size, picture.crop
    write_json(
        path / "preprocessor_config.json",
        {
            "image_processor_type": (
                "DeiTImageProcessor"
                if picture.square
                else "BitImageProcessor"
                if crop
                else "ViTImageProcessor"
            ),
            "size": {"height": size, "width": size}
            if picture.square or not crop
            else {"shortest_edge": size},
            "do_center_crop": bool(crop),
            "crop_size": {"height": crop, "width": crop},
            "resample": 3 if picture.resample == "bicubic" else 2,
            "rescale_factor": 1 / 255,
            "image_mean": picture.mean,
            "image_std": picture.std,
        },
    )
