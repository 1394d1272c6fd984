"""Makes standard input, output and errors usable, even if the shell has closed them."""

import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import partial

# Without tabs and line ends, and without colours and "one line up", which progress bars use.
CONTROL = re.compile(r"(?!\x1b\[[\d;]*[mA])[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def prepare_streams() -> None:
    """Makes the standard streams usable. Each process calls this before it opens files.

    The shell may have closed some of them (`2>&-`). The next files to be opened would get their
    numbers, and libraries would write their messages into these files. The encoding of a
    terminal may lack some characters: they are shown as \\uXXXX. Output to anything else is
    UTF-8, like the files that are read, unless PYTHONIOENCODING says otherwise.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:  # it is closed
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(null, True)
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115 (until the end)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):  # a notebook's, for example
            continue
        if not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
            stream.reconfigure(encoding="utf-8")
        stream.reconfigure(errors="backslashreplace")  # last: an encoding resets it
        # A name in a corpus or of a file may hold what a terminal takes for a command.
        stream.write = partial(write_visibly, stream.write)  # type: ignore[method-assign]


def write_visibly(write: Callable[[str], int], text: str) -> int:
    """Writes a text, with \\x07 for the bell, and so on for all that `CONTROL` matches."""
    write(CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text))
    return len(text)


def note(text: str) -> None:
    """Prints a line to standard error, if somebody still reads it."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def ignore_lost_stdout(problems: type[OSError] = BrokenPipeError):
    """Ends the block silently if nobody reads its output any more, as after `head`.

    problems: OSError also covers a terminal that has gone, and a full disk.
    """
    try:
        yield
        sys.stdout.flush()
    except problems:
        # Python flushes stdout once more as it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def readable(text: str) -> str:
    """Returns text from the terminal or an argument with all that is not UTF-8 replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
