"""Images as arrays of bytes: from files that Pillow reads, and from IDX files."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from support.common.errors import UserError, as_user_error, require
from support.corpora.archives import read_bytes

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")  # of a GIF, only the first image
MAX_PIXELS = 50_000_000
MAX_RATIO = 16  # of an image's edges, of which a crop keeps a square
GREY_16 = bytes([16, 0])  # in the header of a PNG file: bits, and that they are grey
SAMPLE_IMAGES = 1000  # enough to see how many bits the pixels use


@dataclass
class ImageTransform:
    """How an image becomes an array, and how a model normalizes its channels.

    Without a crop, or if `square`, both edges are resized to `size`; otherwise only the shorter
    edge is, and the other one in proportion.
    """

    size: int = 32  # pixels
    channels: int = 3  # 1: grey
    resample: str = "bilinear"  # or "bicubic"
    crop: int = 0  # pixels per side of the centre that is cut out after resizing; 0: no crop
    # Mean and standard deviation of each channel, from 0 to 1; [] means 0.5.
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    square: bool = False  # whether both edges are resized to `size` before a crop
    # How many bits the 16-bit grey images of the corpus use; the upper 8 of them become a byte.
    # 0: there are none, so each image that comes later is scaled by its own.
    grey_bits: int = 0

    def __post_init__(self):
        self.mean = list(self.mean) or [0.5] * self.channels
        self.std = list(self.std) or [0.5] * self.channels
        if self.channels not in (1, 3):
            raise UserError(f"images of {self.channels} channels: it must be 1 or 3")
        if not self.crop <= self.size <= 4096:
            raise UserError(
                f"images of {self.size} pixels a side: it must be from {self.crop} to 4096"
            )

    @property
    def output_size(self) -> int:
        """Pixels per side of the arrays."""
        return self.crop or self.size


def read_image(source: Path | np.ndarray, transform: ImageTransform) -> np.ndarray:
    """Returns an image as (channels, n, n) bytes; n is output_size. Raises UserError.

    source: an image file, or bytes, (height, width), of an IDX file.
    """
    if isinstance(source, np.ndarray):
        n = transform.output_size
        if transform.channels == 1 and transform.size == n and source.shape == (n, n):
            return source[None]  # without Pillow
        return to_array(load_pillow().fromarray(source), transform)
    with open_image(source) as image:
        return to_array(image, transform)


@contextmanager
def open_image(path: Path):
    """Opens an image with Pillow. Raises UserError, also for what the block cannot read."""
    image_module = load_pillow()
    if path.is_dir():
        raise UserError(f"{path}: a folder; pass an image")
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with (
        as_user_error(f"{path}: not a readable image of type {', '.join(FORMATS)}"),
        warnings.catch_warnings(action="ignore"),
        image_module.open(path, formats=FORMATS) as image,
    ):
        yield image


def bits_in_use(paths: list[Path]) -> int:
    """Returns how many bits the 16-bit grey images of a corpus use; 0 if there are none.

    It is one number for all, so that a bright image stays brighter than a dark one: often 10,
    12 or 14. At most SAMPLE_IMAGES of the files are looked into. Raises UserError.
    """
    largest = 0
    for path in random.Random(1).sample(paths, min(len(paths), SAMPLE_IMAGES)):
        with path.open("rb") as file:
            header = file.read(26)
        if header.startswith(b"\x89PNG") and header.endswith(GREY_16):
            with open_image(path) as image:
                largest = max(largest, largest_value(image))
    return max(8, largest.bit_length()) if largest else 0


def largest_value(image) -> int:
    """Returns the largest value that the pixels of a grey Pillow image have.

    A value that stands for transparent pixels is left out.
    """
    pixels = np.asarray(image)
    transparent = image.info.get("transparency", -1)
    return int(pixels.max(initial=0, where=pixels != transparent))


def load_pillow():
    """Returns Pillow's module Image. Raises UserError if Pillow is not installed."""
    require("pillow", "a corpus of images", module="PIL")
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2  # Pillow raises an error for twice as many
    return Image


def to_array(image, transform: ImageTransform) -> np.ndarray:
    """Returns a Pillow image as (channels, n, n) bytes, upright by its EXIF data.

    Transparent parts become white.
    """
    image_module = load_pillow()
    from PIL import ImageOps

    with suppress(Exception):  # broken EXIF data raise exceptions of many types
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        # Pillow's convert() would clip all values over 255.
        pixels = np.asarray(image)
        bits = transform.grey_bits or largest_value(image).bit_length()
        grey = (pixels >> max(0, bits - 8)).clip(max=255)
        grey[pixels == image.info.get("transparency", -1)] = 255
        image = image_module.fromarray(grey.astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = image_module.new("RGBA", image.size, "white")
        image = image_module.alpha_composite(white, image)
    image = image.convert("L" if transform.channels == 1 else "RGB")
    width = height = transform.size
    if transform.crop and not transform.square:
        shorter = min(image.size)
        # The ends of a long thin image are cut off before they are enlarged.
        longest = MAX_RATIO * shorter
        image = cut_centre(image, min(image.width, longest), min(image.height, longest))
        width, height = (edge * transform.size // shorter for edge in image.size)
    image = image.resize((width, height), image_module.Resampling[transform.resample.upper()])
    n = transform.output_size
    pixels = np.asarray(cut_centre(image, n, n)).reshape(n, n, transform.channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def cut_centre(image, width: int, height: int):
    """Returns the centre of a Pillow image."""
    left = (image.width - width) // 2
    top = (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


# --- IDX --------------------------------------------------------------------------------------


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Returns the bytes of an IDX file (.gz too), in its shape. Raises UserError."""
    shape = idx_shape(path, dimensions)
    pixels = np.frombuffer(read_bytes(path), np.uint8, offset=4 + 4 * dimensions)
    with as_user_error(f"{path}: not a whole IDX file"):
        return pixels.reshape(shape)


def idx_shape(path: Path, dimensions: int) -> list[int]:
    """Returns the shape in the header of an IDX file (.gz too). Raises UserError."""
    size = 4 + 4 * dimensions  # bytes
    header = read_bytes(path, size)
    magic = bytes([0, 0, 8, dimensions])
    if header[:4] != magic or len(header) < size:
        raise UserError(f"{path}: not an IDX file of bytes in {dimensions} dimensions")
    return np.frombuffer(header[4:], ">u4").tolist()


def read_idx_pair(
    images_path: Path, labels_path: Path, classes: list[str]
) -> Iterator[tuple[np.ndarray, str]]:
    """Yields (image, class name); an image is (height, width) bytes. Raises UserError.

    classes: their names; without them, the numbers are the names.
    """
    images = read_idx(images_path, 3)
    labels = read_idx(labels_path, 1)
    if len(images) != len(labels):
        problem = f"{len(images):,} images, but {labels_path} has {len(labels):,} labels"
        raise UserError(f"{images_path} has {problem}")
    for image, label in zip(images, labels):
        yield image, classes[label] if classes else str(label)


# --- Augmentation -----------------------------------------------------------------------------


def shift_and_mirror(pixels: np.ndarray, offsets_and_flips: np.ndarray) -> np.ndarray:
    """Returns images, (n, channels, height, width), each shifted and perhaps mirrored.

    offsets_and_flips: (n, 3): pixels down, pixels to the right, and 1 to mirror the image. The
    uncovered border is black.
    """
    height, width = pixels.shape[2:]
    margin = np.abs(offsets_and_flips[:, :2]).max(initial=0)
    padded = np.pad(pixels, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    out = np.empty_like(pixels)
    for i, (down, right, is_mirrored) in enumerate(offsets_and_flips.tolist()):
        top = margin - down
        left = margin - right
        image = padded[i, :, top : top + height, left : left + width]
        out[i] = image[:, :, ::-1] if is_mirrored else image
    return out
