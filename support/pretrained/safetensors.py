"""Tensors in files: safetensors (https://huggingface.co/docs/safetensors), by hand.

A file is eight bytes with the length of its header; the header, JSON with the type and shape of
each tensor, and where its bytes begin and end; then these bytes, without gaps.
"""

import json
import math
from pathlib import Path

import torch
from torch import Tensor

from support.common.errors import UserError

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, by name.

    It is checked before memory is taken for them. A spoilt one raises ValueError, or where its
    header is no dictionary of what it should be, KeyError, TypeError or AttributeError.
    """
    with open(path, "rb") as file:
        size, length = path.stat().st_size - 8, int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size, 100_000_000):  # the format's own limit
            raise ValueError(f"its header has {length:,} bytes, the file {size + 8:,}")
        header, at = json.loads(file.read(length)), 0
        header.pop("__metadata__", None)
        tensors = dict(sorted(header.items(), key=lambda item: item[1]["data_offsets"]))
        for name, entry in tensors.items():
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            if kind not in TYPES or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
                raise ValueError(f"{name} has the unknown type {kind}, or the shape {shape}")
            if begin != at or end != at + math.prod(shape) * TYPES[kind].itemsize:
                raise ValueError(f"{name}: {kind} {shape} cannot be bytes {begin} to {end}")
            at = end
        if at != size - length:
            raise ValueError(f"its tensors need {at:,} bytes, it has {size - length:,}")
        for name, entry in tensors.items():
            tensors[name] = torch.empty(entry["shape"], dtype=TYPES[entry["dtype"]])
            file.readinto(tensors[name].view(-1).view(torch.uint8).numpy())
        return tensors


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes tensors in fp32."""
    entries, end = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * tensor.numel()
        entries[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # readers need tensors at multiples of 8
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors.values():
            file.write(tensor.detach().cpu().float().contiguous().numpy())


def in_fp32(tensor: Tensor, what: str) -> Tensor:
    """The tensor in fp32. Raises UserError unless it is a dense one of finite numbers."""
    is_odd = tensor.is_meta or tensor.is_complex() or tensor.is_quantized
    if (
        is_odd
        or tensor.layout != torch.strided
        or not (found := tensor.float()).isfinite().all()
    ):
        raise UserError(f"{what} is no plain tensor of finite numbers")
    return found
