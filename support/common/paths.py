"""The folders of the project: its code, its runs, and its cache of encoded corpora."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOGS = Path("logs")  # in the current folder
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "translator"
