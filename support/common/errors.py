"""Errors that the user can correct: a script prints one line and exits with status 2."""

import argparse
import errno
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from support.common.streams import ignore_lost_stdout, prepare_streams

MAX_LENGTH = 200  # characters of another program's message


class UserError(Exception):
    """The user's input cannot be used; the message says in one line what is wrong."""


def first_line(problem: BaseException) -> str:
    """Returns the first line of an exception's message, or its type if it has no message."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0][:MAX_LENGTH]


@contextmanager
def as_user_error(message: str) -> Iterator[None]:
    """Turns exceptions of the block into UserErrors: `message` and the reason, in one line."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except PermissionError as problem:  # the file may be whole
        raise UserError(error_message(problem)) from problem
    except Exception as problem:  # damaged files raise exceptions of many types
        reason, _, _ = first_line(problem).partition(". ")  # the first sentence
        if isinstance(problem, KeyError):
            reason = f"there is no {problem}"
        raise UserError(f"{message} ({reason})") from problem


def require(package: str, purpose: str, module: str = "") -> None:
    """Raises UserError, with `purpose` in its message, unless an optional package is installed.

    module: its name in Python, if pip knows it by another one.
    """
    spec = importlib.util.find_spec(module or package)
    # Python takes a folder without code for a module: W&B, for one, leaves a folder wandb/.
    if spec is None or spec.origin is None:
        raise UserError(f"{purpose} needs a package: pip install {package}")


class ArgumentParser(argparse.ArgumentParser):
    """An argument parser that raises UserError for a wrong command line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; --help lists the flags")


def make_parser(description: str, arguments: str = "") -> ArgumentParser:
    """Returns a parser whose --help prints `description` as it is written.

    arguments: those without a flag, as the line on usage shows them.
    """
    return ArgumentParser(
        description=description,
        usage=f"%(prog)s [FLAGS] {arguments}".rstrip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def error_message(problem: UserError | OSError) -> str:
    """Returns what a user is told of an error. Of an OSError it names the file."""
    if isinstance(problem, OSError):
        return f"{problem.filename or 'a file cannot be written'}: {problem.strerror}"
    return str(problem)


@contextmanager
def exit_on_user_error():
    """Prints a UserError of the block on one line and exits with status 2; Ctrl-C: with 130.

    An OSError is handled the same way if it names a file or says that the disk is full.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (UserError, OSError) as problem:
        if isinstance(problem, OSError):
            disk_is_full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
            if not problem.filename and not disk_is_full:
                raise
        print(f"error: {error_message(problem)}", file=sys.stderr, flush=True)
        sys.exit(2)


def is_out_of_memory(problem: BaseException) -> bool:
    """Returns whether an exception, PyTorch's or Python's, means that memory is full."""
    phrases = ("out of memory", "can't allocate memory", "Cannot allocate memory")
    in_words = any(phrase in str(problem) for phrase in phrases)
    return isinstance(problem, MemoryError) or in_words


def run_main(main: Callable[[], None]) -> None:
    """Runs the main function of a script that does not train."""
    prepare_streams()
    with exit_on_user_error():
        try:
            with ignore_lost_stdout():
                main()
        except KeyboardInterrupt:
            os._exit(130)  # without waiting for the pool's processes
        except (RuntimeError, MemoryError) as problem:
            if not is_out_of_memory(problem):
                raise
            raise UserError(f"out of memory ({first_line(problem)})") from None
