"""Flags from a file: configs/NAME.yaml, one's own YAML or JSON, or a run's config.json."""

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.common.errors import UserError, first_line
from support.training.settings import SCRIPT_FLAGS, Settings, flags_of


def read_config(
    path: str, settings_class: type[Settings], pretrained: str = ""
) -> dict[str, Any]:
    """Returns the flags that a file gives, by name. Raises UserError.

    Headings in the file, such as `model:`, have no meaning. A run's config.json starts another
    run with the same flags: what belongs to its machine or to itself alone is not taken, nor is
    the model's shape if the weights are pretrained. pretrained: what the command line names.
    """
    content = load_file(path)
    if not isinstance(content, dict):
        raise UserError(f"--config {path}: it has no flags")
    known = flags_of(settings_class)
    ignored = SCRIPT_FLAGS - known.keys()
    if {"mode", "flags"} <= content.keys():
        content = content["flags"]
        ignored |= {name for name, field in known.items() if not field.metadata["copied"]}
        if pretrained or content.get("pretrained"):
            ignored |= {name for name, field in known.items() if field.metadata["is_shape"]}
    flags: dict[str, Any] = {}
    for key, value in without_headings(content, known):
        name = str(key).replace("-", "_")
        if name in ignored:
            continue
        if name not in known:
            raise UserError(
                f"--config {path}: there is no flag {name!r}; --help lists the flags"
            )
        if name == "config" and value:
            raise UserError(f"--config {path}: it names another file; only one is read")
        if name in flags:
            raise UserError(f"--config {path}: {name} is given twice")
        flags[name] = convert(path, known[name], value)
    return flags


def load_file(path: str) -> Any:
    """Returns what a YAML or JSON file holds. Raises UserError, which names the line."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Refuses a name that is given twice, of which YAML would take the last."""

        def construct_mapping(self, node, deep=False):
            names = [key.value for key, _ in node.value]
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{name} is given twice")
            return super().construct_mapping(node, deep)

    try:
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith(".json"):
            text = text.replace("\t", " ")  # which YAML, otherwise like JSON, refuses
        return yaml.load(text, Loader) or {}
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(problem, "problem", None) or first_line(problem)
        raise UserError(f"--config {path}{line}: {reason}") from problem


def without_headings(content: dict, known: dict[str, dataclasses.Field]):
    """Yields (name, value) of all flags, also of those below a heading."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from value.items()
        elif value is not None or str(key).replace("-", "_") in known:  # else: an empty heading
            yield key, value


def convert(path: str, field: dataclasses.Field, value: Any) -> Any:
    """Returns the value that a file gives to a flag, with the flag's type. Raises UserError."""
    choices = field.metadata["choices"]
    expected: Any = field.type
    if choices and isinstance(value, bool):  # PyYAML reads yes and no as true and false
        value = "yes" if value else "no"
    # A list is not shown: with YAML's aliases a few lines can stand for gigabytes.
    shown = f"a {type(value).__name__}" if isinstance(value, list | dict) else repr(value)
    if choices and value not in choices:
        raise UserError(
            f"--config {path}: {field.name} is {shown}, not one of {', '.join(choices)}"
        )
    if type(value) is expected:
        return value
    if expected is float and type(value) in (int, str):
        with suppress(ValueError, OverflowError):
            return float(value)  # PyYAML reads 1e-3 as text
    wanted = "text (put it in quotes)" if expected is str else expected.__name__
    raise UserError(f"--config {path}: {field.name} is {shown}, not {wanted}")
