"""Files that are read whole or not at all."""

import json
from pathlib import Path


def write_json(path: Path, content: dict) -> None:
    """Writes under another name and renames, so others find it whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(
        json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    partial.rename(path)
