"""An interactive prompt in the terminal."""

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from support.common.errors import UserError


def prompt(greeting: str, question: str, answer: Callable[[str], str]) -> None:
    """Prints `answer(line)`, or its UserError, for each line until q, Ctrl-D or Ctrl-C.

    The arrow keys edit the line and recall earlier ones. What is not UTF-8 comes in the line
    as in an argument: see `readable` in streams.py.
    """
    with suppress(ImportError):  # not on Windows, whose console recalls lines by itself
        import readline  # noqa: F401  # not at the top: importing it may write to the terminal
    print(greeting)
    if isinstance(sys.stdin, io.TextIOWrapper):  # a file's name may not be UTF-8
        sys.stdin.reconfigure(errors="surrogateescape")
    try:
        while True:
            line = input(question)
            if line.strip() == "q":
                break
            if not line.strip():
                continue
            try:
                print(answer(line))
            except UserError as problem:  # a mistyped path, for example
                print(f"error: {problem}")
    except (EOFError, KeyboardInterrupt):
        print()


def warn_if_path(line: str) -> None:
    """Warns that a file's name, not the lines in the file, is taken for a text."""
    if os.path.isfile(line):  # unlike Path's method, False for a text too long to be a name
        print(
            f"warning: the name {line} is taken for a text; for the lines of the file: "
            f"< {line}",
            file=sys.stderr,
        )
