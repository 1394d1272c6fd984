"""Input that cannot be used, and how every script answers it: one line on stderr, exit status 2."""

import argparse
import errno
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import NoReturn


class UserError(Exception):
    """The user's input cannot be used; the message says what is wrong, in one line."""


def refuse(message: str) -> NoReturn:
    """Raises UserError, also where only a call can stand."""
    raise UserError(message)


def first_line(problem: Exception, most: int = 90) -> str:
    """What an exception says, in one line of at most so many characters; else its type."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0][:most]


def make_parser(doc: str, usage: str) -> argparse.ArgumentParser:
    """A parser that says of a wrong flag what is said of other bad input; `doc` heads its help."""
    parser = argparse.ArgumentParser(
        description=doc,
        usage=f"%(prog)s [FLAGS] {usage}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.error = lambda message: refuse(f"{message}; --help lists the flags")
    return parser


@contextmanager
def exit_on_user_error():
    """Ends the program with one line where the block raises UserError; after Ctrl-C with status 130.

    A full disk or a folder that is gone is answered the same way.
    """
    try:
        yield
    except (UserError, OSError) as problem:
        if isinstance(problem, OSError):
            if not problem.filename and problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            problem = f"{problem.filename or 'a file cannot be written'}: {problem.strerror}"
        print(f"error: {problem}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def reader_may_leave():
    """Ends the block where what reads the output has left, as `| head` does; the rest is lost."""
    try:
        yield
        if sys.stdout:  # else it was closed before the start
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_main(main: Callable[[], None]) -> None:
    """Runs a script that only reads a model and prints: whenever it ends, nothing is lost."""
    sys.stdin = sys.stdin or open(os.devnull)  # it was closed before the start
    with exit_on_user_error():
        try:
            with reader_may_leave():
                main()
        except KeyboardInterrupt:
            os._exit(130)  # at once: nobody needs what is begun
