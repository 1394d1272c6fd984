"""The shape of a model, from the flags of the training scripts."""

from dataclasses import fields
from typing import TypeVar

from model import LayerConfig
from support.common.errors import UserError

Config = TypeVar("Config", bound=LayerConfig)


def make_config(config_class: type[Config], args, **others) -> Config:
    """Returns a model's shape: fields of LayerConfig from the flags named so, and `others`.

    Raises UserError for an impossible shape.
    """
    names = [field.name for field in fields(LayerConfig) if hasattr(args, field.name)]
    shape = {name: getattr(args, name) for name in names}
    try:
        return config_class(**(shape | others))
    except ValueError as problem:
        raise UserError(str(problem)) from problem
