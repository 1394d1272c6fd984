"""The folders of the project: its code, its runs, and its cache of encoded corpora."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOGS = Path("logs")  # in the current folder


def find_cache() -> Path:
    """Returns the folder of encoded corpora, which the system keeps with other caches."""
    cache = os.environ.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache) / "translator"
    try:
        home = Path.home()
    except RuntimeError:  # of a container's user, who may have neither HOME nor a name
        home = Path()  # the current folder
    return home / ".cache" / "translator"


CACHE = find_cache()
