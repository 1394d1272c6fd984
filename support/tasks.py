"""Which task `--data` asks for; support/translation.py has the interface of a task."""

from support import translation
from support.translation import Translation


def find_task(args) -> Translation:
    """The task of a run, with its data ready to train on. Raises BadInput.

    args.saved: what the task left in the checkpoint that the run goes on from, else None.
    """
    return Translation(args, args.saved)


def presets(flags: dict) -> dict:
    """What is best for the corpus that the flags name, where that was tried. Raises BadInput."""
    return translation.presets(flags)


def check(args) -> None:
    """Raises BadInput for flags that no task can be made from, before anything is started."""
    translation.model_config(args, args.vocab_size)
