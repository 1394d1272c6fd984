"""Writing small files atomically."""

import json
from pathlib import Path


def write_json(path: Path, content: dict) -> None:
    """Writes under another name, then renames: a reader finds the whole file or none."""
    partial = path.with_suffix(".partial")
    text = json.dumps(content, indent=1, ensure_ascii=False)
    partial.write_text(text + "\n", encoding="utf-8")
    partial.rename(path)
