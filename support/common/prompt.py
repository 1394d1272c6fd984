"""An interactive prompt in the terminal."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from support.common.errors import UserError
from support.common.paths import CACHE
from support.common.streams import readable

HISTORY = CACHE / "history"


def prompt(greeting: str, question: str, answer: Callable[[str], str]) -> None:
    """Prints `answer(line)`, or its UserError, for each line until q, Ctrl-D or Ctrl-C.

    The arrow keys edit the line and recall earlier ones, also those of earlier prompts.
    """
    readline = load_history()
    num_earlier = readline.get_current_history_length() if readline else 0
    print(greeting)
    if isinstance(sys.stdin, io.TextIOWrapper):  # `readable` replaces what is not UTF-8
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        while True:
            line = input(question)
            if line.strip() == "q":
                break
            if not line.strip():
                continue
            try:
                print(answer(readable(line)))
            except UserError as problem:  # a mistyped path, for example
                print(f"error: {problem}")
    except (EOFError, KeyboardInterrupt):
        print()
    finally:
        if readline:
            save_history(readline, num_earlier)


def warn_if_path(line: str) -> None:
    """Warns that a file's name, not the lines in the file, is taken for a text."""
    if os.path.isfile(line):  # unlike Path's method, False for a text too long to be a name
        print(
            f"warning: the name {line} is taken for a text; for the lines of the file: "
            f"< {line}",
            file=sys.stderr,
        )


def save_history(readline, num_earlier: int) -> None:
    """Adds this prompt's lines to the file, which other prompts may have changed meanwhile.

    num_earlier: the lines of earlier prompts that were loaded.
    """
    with suppress(OSError):
        HISTORY.parent.mkdir(parents=True, exist_ok=True)
        if hasattr(readline, "append_history_file"):  # not with every library
            HISTORY.touch(mode=0o600)
            count = readline.get_current_history_length() - num_earlier
            readline.append_history_file(count, HISTORY)
        else:
            readline.write_history_file(HISTORY)


def load_history():
    """Returns the module readline with the lines of earlier prompts, or None without it."""
    if sys.platform == "win32":  # its console recalls lines by itself
        return None
    try:
        import readline  # not at the top: importing it may write to the terminal

        readline.set_history_length(1000)
        if HISTORY.exists():
            readline.read_history_file(HISTORY)
    except (ImportError, OSError):  # Python was built without it; another user's file
        return None
    return readline
