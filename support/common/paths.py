"""The folders of the project: its code, its runs, and its cache; the paths of its scripts."""

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOGS = Path("logs")  # in the current folder


def find_cache() -> Path:
    """Returns the folder of encoded corpora and measured speeds."""
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache) / "translator"
    try:
        home = Path.home()
    except RuntimeError:  # of a container's user, who may have neither HOME nor a name
        home = Path()  # the current folder
    return home / ".cache" / "translator"


def script_path(name: str = "") -> str:
    """Returns the path of the running script, or of `name` beside it, for a command line."""
    path = Path(sys.argv[0])
    if name:
        path = path.with_name(name)
    return quote(path)


def quote(word: str | Path) -> str:
    """Returns a word of a command line, quoted if the shell needs that."""
    text = str(word)
    if sys.platform == "win32":
        return f'"{text}"' if " " in text else text
    return shlex.quote(text)


CACHE = find_cache()
