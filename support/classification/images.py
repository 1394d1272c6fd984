"""Pictures as arrays of bytes: from files that Pillow reads, and from IDX files.

read_picture(Path("shirt.png"), Picture(size=28, channels=1))       # (channels, size, size)
"""

import gzip
import math
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from support.common.errors import UserError
from support.corpora.download import sha256
from support.corpora.pairs import find_file

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  # of a GIF the first picture
MOST_PIXELS = 50_000_000
# Xiao et al., 2017, under the MIT licence. Size and SHA-256 are of the unpacked file.
FASHION_MNIST_URL = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
)
FASHION_MNIST = {
    "t10k-labels-idx1-ubyte.gz": (
        10008,
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    "train-labels-idx1-ubyte.gz": (
        60008,
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte.gz": (
        7840016,
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "train-images-idx3-ubyte.gz": (
        47040016,
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
}
FASHION_CLASSES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]


@dataclass
class Picture:
    """How a picture is made an array, and how a model that takes it normalizes each channel.

    size: pixels of both edges, or with a crop but not `square`, of the shorter. Raises UserError.
    """

    size: int = 32
    channels: int = 3  # 1: grey
    resample: str = "bilinear"  # or "bicubic"
    crop: int = 0  # then the centre is cut out, so large
    mean: list[float] = field(default_factory=list)  # of values from 0 to 1; empty: 0.5
    std: list[float] = field(default_factory=list)
    square: bool = False  # both edges become `size` before a crop

    def __post_init__(self):
        self.mean, self.std = (list(x) or [0.5] * self.channels for x in (self.mean, self.std))
        if not 1 <= self.size <= 4096 or not 0 <= self.crop <= self.size:
            raise UserError(
                f"pictures of {self.size} pixels a side, of which a crop leaves "
                f"{self.crop}: it must be 1 to 4096, and the crop no larger"
            )
        if self.channels not in (1, 3) or self.resample not in ("bilinear", "bicubic"):
            raise UserError(
                f"pictures of {self.channels} channels, made fit by {self.resample}: "
                f"1 or 3 channels are known, bilinear and bicubic"
            )


def read_picture(path: Path, picture: Picture) -> np.ndarray:
    """A picture file as bytes, (channels, n, n); n: crop, or else size. Raises UserError."""
    image_module = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            with image_module.open(path, formats=FORMATS) as image:
                return fit(upright(image), picture)
    except (image_module.DecompressionBombWarning, image_module.DecompressionBombError):
        raise UserError(
            f"{path}: more than {MOST_PIXELS // 10**6} megapixels, make it smaller"
        ) from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except Exception as problem:  # Pillow raises many kinds
        reason = " ".join(str(problem).split())[:100]
        raise UserError(
            f"{path}: not a whole picture of {', '.join(FORMATS)} ({reason})"
        ) from problem


def pillow():
    """Pillow's module Image, which refuses what is too large."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError(
            "pictures are read with Pillow, which is not installed: pip install pillow"
        ) from None
    Image.MAX_IMAGE_PIXELS = MOST_PIXELS
    return Image


def upright(image):
    """A Pillow image as its camera was held, where its EXIF data can be read."""
    from PIL import ImageOps

    with suppress(Exception):  # of what is broken it raises many kinds
        return ImageOps.exif_transpose(image)
    return image


def fit(image, picture: Picture) -> np.ndarray:
    """A Pillow image as bytes, (channels, n, n). Transparency is left out."""
    image_module, size, n = pillow(), picture.size, picture.crop or picture.size
    if image.mode[0] == "I":  # 16 bits; Pillow would cut them at 255
        image = image_module.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert("L" if picture.channels == 1 else "RGB")
    shorter = min(image.size)
    edges = [edge * size // shorter for edge in image.size]
    edges = edges if picture.crop and not picture.square else [size, size]
    if math.prod(edges) > MOST_PIXELS:  # a thin line, until it is enlarged
        raise image_module.DecompressionBombError
    image = image.resize(edges, image_module.Resampling[picture.resample.upper()])
    left, top = ((edge - n) // 2 for edge in edges)
    pixels = np.asarray(image.crop((left, top, left + n, top + n)))
    return np.ascontiguousarray(pixels.reshape(n, n, picture.channels).transpose(2, 0, 1))


# --- IDX ------------------------------------------------------------------------------------------


def find_idx(folder: Path) -> dict[str, list[Path | None]]:
    """Of each part, the IDX files of its pictures and of its labels."""
    found = {
        part: [
            find_file(f"{folder}/{name}-{what}-ubyte")
            for what in ("images-idx3", "labels-idx1")
        ]
        for part, name in (("train", "train"), ("test", "t10k"))
    }
    return {part: pair for part, pair in found.items() if any(pair)}


def is_fashion_mnist(folder: Path) -> bool:
    """Whether its IDX files, packed or not, hold what Fashion-MNIST's do."""
    files = {
        find_file(f"{folder}/{name.removesuffix('.gz')}"): check
        for name, (_, check) in FASHION_MNIST.items()
    }
    return all(path and sha256(path, unpacked=True) == check for path, check in files.items())


def read_idx(path: Path, dimensions: int, whole: bool = True) -> np.ndarray | list[int]:
    """The bytes that an IDX file (.gz too) holds, or of not the `whole` their shape alone.

    Raises UserError.
    """
    start = 4 + 4 * dimensions
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            content = file.read() if whole else file.read(start)
    except (OSError, EOFError, zlib.error) as problem:
        raise UserError(f"{path}: cannot be read ({problem})") from problem
    magic = bytes([0, 0, 8, dimensions])
    if content[:4] != magic or len(content) < start:
        raise UserError(
            f"{path}: not an IDX file of bytes in {dimensions} dimensions: it begins "
            f"with {content[:4].hex() or 'nothing'} instead of {magic.hex()}"
        )
    shape = np.frombuffer(content[4:start], ">u4").tolist()
    if not whole:
        return shape
    if len(content) - start != math.prod(shape):
        raise UserError(
            f"{path}: {len(content) - start:,} bytes after its header, which says "
            f"{' x '.join(map(str, shape))} = {math.prod(shape):,}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_idx_labels(path: Path, classes: list[str]) -> list[str]:
    """The labels of an IDX file by name, or where the classes have none, as numbers in words."""
    labels = read_idx(path, 1)
    if classes and labels.max(initial=0) >= len(classes):
        raise UserError(
            f"{path}: the label {labels.max()}, but there are {len(classes)} classes"
        )
    return [classes[label] if classes else str(label) for label in labels.tolist()]


def read_idx_pair(
    images: Path, labels: Path, classes: list[str], picture: Picture
) -> Iterator[tuple[np.ndarray, str]]:
    """Each picture, bytes of (channels, n, n), with its label. Raises UserError."""
    pictures, names = read_idx(images, 3), read_idx_labels(labels, classes)
    if len(pictures) != len(names):
        raise UserError(
            f"{images} has {len(pictures):,} pictures, {labels} has {len(names):,} labels"
        )
    as_it_is = (
        picture.channels == 1
        and picture.crop in (0, picture.size)
        and (pictures.shape[1:] == (picture.size, picture.size))
    )
    for pixels, name in zip(pictures, names):
        yield (
            (pixels[None].copy() if as_it_is else fit(pillow().fromarray(pixels), picture)),
            name,
        )


def move(pixels: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Pictures (n, channels, height, width), each shifted and perhaps mirrored; edges are black."""
    height, width = pixels.shape[2:]
    out = np.zeros_like(pixels)
    far = np.clip(moved, [-height, -width, 0], [height, width, 1]).tolist()
    for old, new, (down, right, mirror) in zip(pixels, out, far):
        new[:, max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)] = (
            old[
                :, max(0, -down) : height - max(0, down), max(0, -right) : width - max(0, right)
            ]
        )
        if mirror:
            new[:] = new[:, :, ::-1].copy()
    return out
