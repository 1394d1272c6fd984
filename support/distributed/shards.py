"""Reads a sharded checkpoint, which may come from other people, without running code in it.

PyTorch describes the shards in a pickle, which can name any function, and reads what is not a
tensor from such pickles, too.
"""

import dataclasses
import enum
import pickle
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

# What a description names besides types and the classes of torch.distributed.checkpoint.
NAMES = {("torch", "Size"), ("torch.serialization", "_get_layout")}


def load_shards(state: dict, folder: str) -> None:
    """Loads this process's shards into `state`, whose tensors say which they are.

    Raises CheckpointException if the checkpoint is not whole, does not fit, or may hold code.
    """
    dcp.load(state, storage_reader=Reader(folder), planner=Planner())


class Reader(dcp.FileSystemReader):
    """Reads the description of the shards without running code."""

    # With **kwargs in its signature, PyTorch would call it for other descriptions, too.
    def read_metadata(self) -> Metadata:
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = DescriptionUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise ValueError("its .metadata is no description of shards")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class DescriptionUnpickler(pickle.Unpickler):
    """Makes data alone."""

    def find_class(self, module: str, name: str):
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        is_path = module.startswith("pathlib") and name.endswith("Path") and "." not in name
        if is_type or is_path or (module, name) in NAMES:
            return super().find_class(module, name)
        if module.startswith("torch.distributed.checkpoint.") and "." not in name:
            found = super().find_class(module, name)
            if dataclasses.is_dataclass(found) or isinstance(found, enum.EnumType):
                return found
        if (module, name) == ("builtins", "getattr"):
            return member_of
        raise pickle.UnpicklingError(f"it may hold code: {module}.{name}")


def member_of(kind: enum.EnumType, name: str) -> enum.Enum:
    """Returns a member of an enumeration, which Python 3.11.2 pickles as an attribute of it."""
    if not isinstance(kind, enum.EnumType):
        raise pickle.UnpicklingError(f"it may hold code: {name}")
    return kind[name]


class Planner(dcp.DefaultLoadPlanner):
    """Refuses values other than tensors that may hold code."""

    def load_bytes(self, read_item, value):
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError:  # its own message has many lines
            raise ValueError("it may hold code") from None
        value.seek(0)
        super().load_bytes(read_item, value)
