"""Input that cannot be used, and how every script answers it: one line on stderr, exit status 2."""

import sys
from contextlib import contextmanager


class BadInput(Exception):
    """The user's input cannot be used; the message says what is wrong, in one line."""


@contextmanager
def answer_bad_input():
    """Ends the program with one line where the block raises BadInput; after Ctrl-C with status 130.

    A full disk or a folder that is gone is answered the same way.
    """
    try:
        yield
    except (BadInput, OSError) as problem:
        if isinstance(problem, OSError):
            if not problem.filename:
                raise
            problem = f"{problem.filename}: {problem.strerror}"
        print(f"error: {problem}", file=sys.stderr, flush=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
