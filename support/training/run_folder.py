"""The folder of a run, logs/NAME: a name that stays within logs/, and nothing overwritten."""

import itertools
import json
import re
from pathlib import Path

from support.common.errors import UserError
from support.common.paths import LOGS


def check_name(name: str) -> str:
    """The name of a run, if it stays within logs/, which it may begin with. Raises UserError."""
    name = name.removeprefix(f"{LOGS}/")
    if (
        name
        and not re.fullmatch(r"[\w.+=,@-]+(/[\w.+=,@-]+)*", name)
        or ".." in name.split("/")
    ):
        raise UserError(
            f"--name {name!r}: letters, digits and ._-+=,@ only; / for folders in logs/"
        )
    return name


def make_folder(folder: Path, corpus: str) -> str:
    """Makes the folder of a new run; without a name, logs/CORPUS-N with a number that is free."""
    try:
        LOGS.mkdir(exist_ok=True)
        if folder != LOGS:
            folder.mkdir(parents=True, exist_ok=True)
            config = folder / "config.json"
            saved = config.is_file() and json.loads(config.read_text()).get("saved")
            if saved or (folder / "summary.json").is_file():
                raise UserError(
                    f"{folder} is a run whose checkpoint last.pt is missing: it cannot "
                    f"go on, and is not overwritten; choose another --name"
                )
            return str(folder)
        corpus = re.sub(r"[^\w.+=,@-]", "-", corpus) or "run"  # to be typed after --resume
        for number in itertools.count(1):
            try:
                (folder / f"{corpus}-{number}").mkdir()
                return str(folder / f"{corpus}-{number}")
            except FileExistsError:
                continue
    except OSError as problem:
        raise UserError(
            f"{problem.filename or folder}: cannot be written ({problem.strerror})"
        ) from problem
    except ValueError:
        raise UserError(f"{folder}/config.json: spoilt; choose another --name") from None
