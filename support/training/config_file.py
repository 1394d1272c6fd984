"""Flags from a file: one in configs/, one's own YAML or JSON, or a run's config.json."""

import dataclasses
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.common.errors import UserError, first_line
from support.common.paths import ROOT
from support.training.settings import SCRIPT_FLAGS, Settings, flags_of

CONFIGS = ROOT / "configs"


def base_config(flags: dict[str, Any]) -> Path | None:
    """Returns the file in configs/ that a new run begins with, if any. Raises UserError.

    It is the corpus's own, NAME.yaml, or else the one for its kind and amount of data.
    """
    from support.corpora.task_type import CLASSIFICATION_CORPORA, TRANSLATION_CORPORA, task_type

    args = SimpleNamespace(**flags)
    if task_type(args.data, args.label) == "translation":
        from support.corpora.pairs import find_corpus

        pairs = find_corpus(args.data, args.valid, args.test, args.src, args.tgt)
        own = CONFIGS / f"{pairs.name}.yaml"
        if pairs.name in TRANSLATION_CORPORA and own.is_file():  # no other corpus's file
            return own
        return config_for_amount("pairs", pairs.parts["train"]())
    from support.classification.labelled import find_labelled

    corpus = find_labelled(
        args.data, args.valid, args.test, args.text, args.label, args.image_size
    )
    own = CONFIGS / f"{corpus.name}.yaml"
    if corpus.name in CLASSIFICATION_CORPORA and own.is_file() and not args.pretrained:
        return own
    kind = f"{corpus.modality}s"
    if args.pretrained:
        kind = f"pretrained-{kind}"
    has_examples = "train" in corpus.parts  # else there will be an error that says so
    return config_for_amount(kind, corpus.names_of("train") if has_examples else ())


def config_for_amount(kind: str, examples: Iterable) -> Path | None:
    """Returns the file for so many examples: KIND-to-N.yaml with the smallest N, or KIND.yaml.

    kind: pairs, texts, images, pretrained-texts or pretrained-images. examples: the training
    set, of which at most one more than the largest N is read.
    """
    prefix = f"{kind}-to-"
    limits = [int(path.stem.removeprefix(prefix)) for path in CONFIGS.glob(f"{prefix}*.yaml")]
    count = sum(1 for _ in islice(examples, max(limits, default=0) + 1))
    for limit in sorted(limits):
        if count <= limit:
            return CONFIGS / f"{prefix}{limit}.yaml"
    path = CONFIGS / f"{kind}.yaml"
    return path if path.is_file() else None


def read_config(
    path: str, settings_class: type[Settings], pretrained: str = ""
) -> dict[str, Any]:
    """Returns the flags that a file gives, by name. Raises UserError.

    Headings in the file, such as `model:`, have no meaning. A run's config.json starts another
    run with the same flags: what belongs to its machine or to itself alone is not taken, nor is
    the model's shape if the weights are pretrained. pretrained: what the command line names.
    """
    content = load_file(path)
    is_of_run = isinstance(content, dict) and {"mode", "flags"} <= content.keys()
    if is_of_run:  # a run's config.json
        content = content["flags"]
    if not isinstance(content, dict):
        raise UserError(f"--config {path}: it has no flags")
    known = flags_of(settings_class)
    ignored = SCRIPT_FLAGS - known.keys()
    if is_of_run:
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
