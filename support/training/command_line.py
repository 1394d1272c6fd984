"""From the command line to the settings of a run.

    command_line = parse_arguments(__doc__, Settings)  # in every process
    args = command_line.complete()  # in one process, which sends it to the others

A flag takes its value from the first of these that sets it: the command line; the --config
file; if a run is resumed, its flags; else the corpus's file in configs/; the default.
"""

import argparse
import inspect
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common.checkpoint import load_run
from support.common.errors import UserError, exit_on_user_error, make_parser, require
from support.common.hardware import (
    check_compiler,
    fast_precision,
    find_device,
    number_in_environment,
)
from support.common.paths import LOGS
from support.common.run_folder import check_name, make_folder
from support.common.streams import prepare_streams, readable
from support.training.config_file import base_config, read_config
from support.training.settings import (
    Settings,
    check_limits,
    defaults_of,
    flags_of,
    option,
)
from support.training.tasks import check_task
from support.training.throughput import known_rate

METAVARS = {str: "TEXT", int: "N", float: "X"}
# Larger steps for GPUs change these flags, unless one of them is given (larger_steps.py).
SIZE_FLAGS = {"batch_tokens", "batch_size", "lr", "head_lr", "warmup"}


@dataclass
class CommandLine:
    """What a command line says."""

    settings_class: type[Settings]  # of the script
    given: dict[str, Any]  # the flags that it names, by name

    def timeout(self) -> int:
        """Returns --timeout, before the settings are completed. Raises UserError."""
        timeout = self.given.get("timeout", self.settings_class.timeout)
        check_limits(self.settings_class, {"timeout": timeout})
        return timeout

    def complete(self, restarted: str = "") -> Settings:
        """Returns the settings of the run, and makes the folder of a new one.

        One process does this for all. restarted: the folder of the run that torchrun starts
        again. Raises UserError.
        """
        from support.corpora.pairs import own_name

        for name, value in self.given.items():  # no file of the run could hold other text
            if isinstance(value, str) and readable(value) != value:
                raise UserError(f"{option(name)} {value!r}: not UTF-8")
        refuse_two_lengths(self.given)
        given = self.with_config_file()
        folder = find_folder(given, restarted)
        checkpoint = self.read_checkpoint(folder, given)
        if checkpoint:
            self.refuse_changes(given, checkpoint["flags"], folder)
            args = self.settings_class(**self.flags_of_resumed_run(given, checkpoint["flags"]))
            args.task_state = checkpoint["task"]
            args.growth = checkpoint["progress"].get("growth", 1)
        else:
            flags, config = self.flags_of_new_run(given)
            args = self.settings_class(**flags)
            args.base_config = config
        settle(args)
        may_grow = not checkpoint and not given.keys() & SIZE_FLAGS
        if may_grow and args.device == "cuda":
            args.gpu_rate = number_in_environment("WORLD_SIZE", 1) * known_rate(args)
        if not args.benchmark:
            args.folder = str(folder)
            if not checkpoint:
                args.folder = make_folder(folder, own_name(Path(args.data), ()))
        return args

    def with_config_file(self) -> dict[str, Any]:
        """Returns the given flags and, of those that are not given, the --config file's."""
        given = self.given
        if not given.get("config"):
            return given
        in_file = read_config(given["config"], self.settings_class, given.get("pretrained", ""))
        return in_file | overridden_by(given) | given

    def read_checkpoint(self, folder: Path, given: dict[str, Any]) -> dict | None:
        """Returns the checkpoint that the run continues from, or None for a new run.

        --resume requires one. With --name, or when torchrun starts a run again, there may be
        one. Raises UserError.
        """
        if not given.get("resume"):
            is_there = folder != LOGS and (folder / "last.pt").is_file()
            if not is_there or given.get("benchmark"):
                return None
        return load_run(folder, "sharded" in flags_of(self.settings_class))

    def flags_of_resumed_run(
        self, given: dict[str, Any], stored: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns all flags of a resumed run. stored: those it began with."""
        if given.get("minutes"):
            if given["minutes"] != stored["minutes"]:
                raise UserError(
                    "--minutes is for a new run: --epochs says how long this one is"
                )
            # What the trial of --minutes has found counts, not the length in a --config file.
            given = {name: given[name] for name in given if name not in ("epochs", "steps")}
        kept = {
            name: stored[name]
            for name, field in flags_of(self.settings_class).items()
            if name in stored and field.metadata["remembered"]
        }
        # Not remembered, but kept: the next resume compares its --minutes with it.
        kept["minutes"] = stored["minutes"]
        if "epochs" in given:
            kept["steps"] = 0
        return defaults_of(self.settings_class) | kept | given

    def flags_of_new_run(self, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Returns all flags of a new run, and its file in configs/, or "" if it has none."""
        flags = defaults_of(self.settings_class)
        path = base_config(flags | given)
        if path:
            flags |= read_config(str(path), self.settings_class)
        flags |= overridden_by(given)
        flags |= given
        if flags["pretrained"]:
            self.refuse_shape(given)
        config = f"configs/{path.name}" if path else ""
        return flags, config

    def refuse_shape(self, given: dict[str, Any]) -> None:
        """Raises UserError for flags that give pretrained weights another shape."""
        for name, field in flags_of(self.settings_class).items():
            if name in given and field.metadata["is_shape"]:
                raise UserError(
                    f"{self.source_of(name)}{option(name)} cannot be set with --pretrained: "
                    f"the weights have a shape already"
                )

    def refuse_changes(
        self, given: dict[str, Any], stored: dict[str, Any], folder: Path
    ) -> None:
        """Raises UserError for a flag that would make a resumed run another run."""
        for name, field in flags_of(self.settings_class).items():
            if name not in given or field.metadata["changeable"]:
                continue
            before = stored.get(name, field.default)  # a flag may be newer than the run
            if given[name] != before:
                shown = "none" if before == "" else before
                raise UserError(
                    f"{self.source_of(name)}{option(name)} {given[name]}: {folder} was started "
                    f"with {shown}; leave it out to resume that run, or begin another with "
                    f"--name"
                )

    def source_of(self, name: str) -> str:
        """Returns what a message about a flag begins with: the file, if it is set there."""
        return "" if name in self.given else f"--config {self.given['config']}: "


def parse_arguments(doc: str, settings: type[Settings]) -> CommandLine:
    """Parses the command line of a training script. doc: the script's docstring."""
    prepare_streams()
    parser = make_parser(doc)
    parser.allow_abbrev = False
    parser.epilog = (
        "Defaults are in brackets. A file in configs/, which depends on the corpus,\n"
        "overrides them. The first line of a run names it."
    )
    known = flags_of(settings)
    groups: dict[str, Any] = {}
    for base in reversed(settings.__mro__):
        heading = getattr(base, "heading", "")
        names = [name for name in inspect.get_annotations(base) if name in known]
        if names and heading not in groups:
            groups[heading] = parser.add_argument_group(heading)
        for name in names:
            add_flag(groups[heading], known[name])
    with exit_on_user_error():
        try:
            return CommandLine(settings, vars(parser.parse_args()))
        except UserError:
            if os.environ.get("RANK", "0") != "0":
                time.sleep(4)  # rank 0 reports it, and torchrun ends the others
            raise


def add_flag(parser, field) -> None:
    """Adds a flag to a parser or to a group of one. What is not given is not in the result."""
    kwargs: dict[str, Any] = {"help": field.metadata["help"], "default": argparse.SUPPRESS}
    if field.type is bool:
        kwargs["action"] = argparse.BooleanOptionalAction  # --no-FLAG undoes what is remembered
    elif field.metadata["choices"]:
        kwargs["choices"] = field.metadata["choices"]
    else:
        kwargs |= {"type": field.type, "metavar": METAVARS[field.type]}
    if field.type is not bool and field.default != "":
        kwargs["help"] += f" [{field.default}]"
    parser.add_argument(option(field.name), **kwargs)


def refuse_two_lengths(given: dict[str, Any]) -> None:
    """Raises UserError if --minutes would override another length of the command line."""
    for name in ("steps", "epochs"):
        if given.get("minutes") and given.get(name):
            raise UserError(f"--minutes and {option(name)}: pass only one of them")


def overridden_by(given: dict[str, Any]) -> dict[str, int]:
    """Returns 0 for each flag that, set by a file, would win over one that is given.

    --steps wins over --epochs, for example: if --epochs is given, 0 turns a file's steps off.
    """
    winners = {
        "epochs": ("steps", "minutes"),
        "steps": ("minutes",),
        "batch_tokens": ("batch_size",),
    }
    return {winner: 0 for name in winners if name in given for winner in winners[name]}


def find_folder(given: dict[str, Any], restarted: str) -> Path:
    """Returns the folder of the run, or LOGS if it has no name yet."""
    if given.get("resume") and given.get("name"):
        raise UserError("--resume and --name: one of them is enough; --name resumes a run, too")
    resume = given.get("resume") or restarted
    if resume:
        return Path(resume)
    return LOGS / check_name(given.get("name", ""))


def settle(args: Settings) -> None:
    """Replaces "auto" by what it stands for, and raises UserError for impossible flags."""
    if args.benchmark:
        args.steps = args.steps or 200
        for name in ("resume", "minutes", "profile"):
            if getattr(args, name):
                raise UserError(
                    f"--benchmark times --steps, or 200 of them, and saves nothing: "
                    f"leave out {option(name)}"
                )
    if args.head_lr and not args.lr:
        raise UserError(
            "--head-lr requires --lr > 0; to train only the head, use --freeze with all layers"
        )
    check_limits(type(args), args.flags())
    for name in ("tensorboard", "wandb"):
        if getattr(args, name):
            require(name, f"--{name}")
    args.device = find_device(args.device, args.DEVICES)
    if args.compile:
        check_compiler(args.device)
    settle_precision(args)
    settle_mesh(args)
    check_task(args)


def settle_precision(args: Settings) -> None:
    """Settles --precision. Raises UserError for one that the device or the script lacks."""
    if args.precision == "auto":
        args.precision = fast_precision(args.device)
        if args.precision == "fp16" and not args.SCALES_LOSS:
            args.precision = "fp32"
    elif args.precision == "fp16" and not args.SCALES_LOSS:
        raise UserError(
            "--precision fp16: train_tp.py cannot scale the loss; add --precision fp32"
        )
    if args.precision == "tf32" and args.device == "cpu":
        raise UserError("--precision tf32: only GPUs have it; use fp32")


def settle_mesh(args: Settings) -> None:
    """Settles --tensor. Raises UserError if the processes do not make whole rows of a mesh."""
    if not args.tensor:  # the default of train_tp.py
        args.tensor = number_in_environment("LOCAL_WORLD_SIZE", 1)
    for name in ("replicas", "tensor"):
        number = getattr(args, name)
        if number == 1:
            continue
        world_size = number_in_environment("WORLD_SIZE", 1)
        if world_size % number:
            raise UserError(
                f"{option(name)} {number}: {world_size} processes cannot be divided by it"
            )
