"""Writing small files atomically."""

import json
import sys
import time
from pathlib import Path

READERS_TIMEOUT = 10  # seconds: how long a reader may keep a file from being replaced


def write_json(path: Path, content: dict) -> None:
    """Writes under another name, then renames: a reader finds the whole file or none."""
    partial = path.with_suffix(".partial")
    text = json.dumps(content, indent=1, ensure_ascii=False)
    partial.write_text(text + "\n", encoding="utf-8")
    replace(partial, path)


def replace(partial: Path, path: Path) -> None:
    """Renames a file, which takes the place of the one that has the name.

    Windows refuses this while another process, a virus scanner perhaps, has one of them open.
    """
    end = time.monotonic() + READERS_TIMEOUT
    while True:
        try:
            partial.replace(path)
            return
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > end:
                raise
        time.sleep(0.1)
