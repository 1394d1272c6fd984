"""Which task `--data` asks for; support/translation.py has the interface of a task."""

from support import classification, translation
from support.errors import BadInput
from support.labelled import is_labelled


def find_task(args) -> translation.Translation | classification.Classification:
    """The task of a run, with its data ready to train on. Raises BadInput.

    args.saved: what the task left in the checkpoint that the run goes on from, else None.
    """
    if is_labelled(args.data, args.label) or (args.saved or {}).get("kind") == "classification":
        return classification.Classification(args, args.saved)
    return translation.Translation(args, args.saved)


def presets(flags: dict) -> dict:
    """What is best for the corpus that the flags name, where that was tried. Raises BadInput."""
    task = classification if is_labelled(flags["data"], flags["label"]) else translation
    return task.presets(flags)


def check(args) -> None:
    """Raises BadInput for flags that no task can be made from, before anything is started."""
    if args.saved or is_labelled(args.data, args.label):
        return
    for name in ("init", "pool", "freeze", "class_weights", "head_lr", "text", "image_size", "stem",
                 "hide", "crop", "flip"):
        if getattr(args, name) not in (0, "", "no", "init"):
            raise BadInput(f"--{name.replace('_', '-')} is for classifiers; {args.data} is to be "
                           f"translated (--label names a column of classes)")
    translation.model_config(args, args.vocab_size)
