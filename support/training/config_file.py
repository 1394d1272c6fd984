"""Flags from a YAML or JSON file."""

import json
from pathlib import Path

from support.common.errors import UserError, first_line

# What belongs to a machine: a run that goes on does not remember it.
MACHINE_FLAGS = {
    "device",
    "replicas",
    "sharded",
    "hardware_tflops",
    "delay_ms",
    "netem",
    "profile",
}
# In a run's record: where it was made, and which run it was, not what kind.
NOT_TAKEN = MACHINE_FLAGS - {"replicas", "sharded"} | {
    "name",
    "resume",
    "config",
    "folder",
    "threads",
}
# The model's shape. With --pretrained it is recorded, but comes from the published weights.
SHAPE = ("layers", "d_model", "heads", "d_ff", "norm", "patch", "stem_channels", "vocab_size")
SCRIPT_FLAGS = {"procs", "sharded", "replicas"}  # other pages pass them over


def read_config(path: str, kinds: dict, init: str = "") -> dict:
    """The flags that a file gives, by name; headings in it, such as `model:`, mean nothing.

    kinds: of each flag its type, or the words it may be. A run's config.json has a "mode", and its
    flags under "flags". init: what --pretrained says; beside it a record's shape means nothing. Raises
    UserError.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(
            f"--config {path}: cannot be read "
            f"({getattr(problem, 'strerror', None) or 'not UTF-8'})"
        ) from problem
    try:
        if path.endswith(".json"):
            content = json.loads(text, object_pairs_hook=once)
        else:
            import yaml  # comes with tokenizers

            class Loader(yaml.SafeLoader):
                """Refuses a name given twice, of which YAML would take the last."""

            Loader.add_constructor(
                "tag:yaml.org,2002:map",
                lambda loader, node: once(loader.construct_pairs(node, deep=True)),
            )
            content = yaml.load(text, Loader) or {}
    except ImportError:
        raise UserError(
            f"--config {path}: PyYAML is not installed here: pip install pyyaml"
        ) from None
    except Exception as problem:  # YAML's errors are of many lines
        mark, what = getattr(problem, "problem_mark", None), getattr(problem, "problem", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(
            f"--config {path}{line}: {what or first_line(problem, 200)}"
        ) from problem
    passed_over, flags = SCRIPT_FLAGS - kinds.keys(), {}
    if isinstance(content, dict) and {"mode", "flags"} <= content.keys():  # a run's record
        content, passed_over = content["flags"], passed_over | NOT_TAKEN
        init = init or isinstance(content, dict) and content.get("pretrained")
        passed_over |= set(SHAPE if init else ())
    if not isinstance(content, dict):
        raise UserError(f"--config {path}: no flags in it")
    for heading, inner in content.items():
        # A heading with nothing under it.
        if inner is None and str(heading).replace("-", "_") not in kinds:
            continue
        for name, value in inner.items() if isinstance(inner, dict) else [(heading, inner)]:
            name = str(name).replace("-", "_")
            if name in passed_over:
                continue
            if name not in kinds:
                raise UserError(
                    f"--config {path}: there is no flag {name!r}; --help lists them"
                )
            if name == "config" and value:
                raise UserError(f"--config {path}: it names another file; only one is read")
            if name in flags:
                raise UserError(f"--config {path}: {name} is given twice")
            flags[name] = checked(path, name, value, kinds[name])
    return flags


def once(pairs: list[tuple]) -> dict:
    """The pairs as a dict. Raises ValueError for a name that comes twice."""
    names = [name for name, _ in pairs]
    if len(found := dict(pairs)) < len(names):
        raise ValueError(f"{max(names, key=names.count)} is given twice")
    return found


def checked(path: str, name: str, value, kind):
    """The value of a flag, as the command line would have it. Raises UserError."""
    if isinstance(kind, tuple):
        if isinstance(value, bool):
            value = "yes" if value else "no"  # YAML takes these words for bools
        if value in kind:
            return value
    elif kind is float and isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return float(value)  # YAML takes 1e-3 for text
        except (ValueError, OverflowError):
            pass
    elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    wanted = (
        "one of " + ", ".join(kind)
        if isinstance(kind, tuple)
        else ("text, unless it is put in quotes" if kind is str else kind.__name__)
    )
    raise UserError(f"--config {path}: {name} is {value!r}, not {wanted}")
