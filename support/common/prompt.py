"""A prompt in the terminal: a line in, an answer out, until q."""

import sys
from collections.abc import Callable
from contextlib import suppress

from support.common.errors import UserError
from support.common.paths import CACHE

HISTORY = CACHE / "history"


def prompt(greeting: str, question: str, answer: Callable[[str], str]) -> None:
    """Prints what `answer` makes of each line, or its UserError, until q, Ctrl-D or Ctrl-C.

    Arrow keys edit the line and find earlier ones, those of earlier prompts too.
    """
    try:
        import readline  # only here: it may write to the terminal

        readline.set_history_length(1000)
        if HISTORY.exists():
            readline.read_history_file(HISTORY)
    except (ImportError, OSError):  # no such library, or another user's file
        readline = None
    print(greeting)
    sys.stdin.reconfigure(errors="surrogateescape")  # what is not UTF-8 is for `readable`
    try:
        while (line := input(question)).strip() != "q":
            if line.strip():
                try:
                    print(answer(readable(line)))
                except UserError as problem:  # as a mistyped path
                    print(f"error: {problem}")
    except (EOFError, KeyboardInterrupt):
        print()
    finally:
        with suppress(OSError):
            if readline:
                HISTORY.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(HISTORY)


def readable(text: str) -> str:
    """Text that was typed or passed as an argument, with what is not UTF-8 in it replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
