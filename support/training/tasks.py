"""Which task `--data` asks for; support/translation/task.py has the interface of a task."""

from support.classification import task as classification
from support.classification.labelled import is_labelled
from support.common.errors import UserError
from support.translation import task as translation

FOR_CLASSIFIERS = (
    "pretrained",
    "pool",
    "freeze",
    "class_weights",
    "head_lr",
    "text",
    "image_size",
    "patch",
    "stem_channels",
    "token_dropout",
    "crop",
    "flip",
)


def find_task(args) -> translation.Translation | classification.Classification:
    """The task of a run, with its data ready to train on. Raises UserError.

    args.saved: what the task left in the checkpoint that the run goes on from, else None.
    """
    if is_labelled(args.data, args.label) or (args.saved or {}).get("kind") == "classification":
        return classification.Classification(args, args.saved)
    return translation.Translation(args, args.saved)


def presets(flags: dict) -> dict:
    """What is best for the corpus that the flags name, where that was tried. Raises UserError."""
    task = classification if is_labelled(flags["data"], flags["label"]) else translation
    return task.presets(flags)


def check(args, defaults: dict) -> None:
    """Raises UserError for flags that no task can be made from, before anything is started.

    defaults: what each flag is where nobody asks for anything.
    """
    if args.saved:
        return
    asked = {
        name: f"--{name.replace('_', '-')}"
        for name, default in defaults.items()
        if getattr(args, name) != default
    }
    if is_labelled(args.data, args.label):
        for name in asked.keys() & {"src", "tgt"}:
            raise UserError(
                f"{asked[name]} is for translation; {args.data} is to be classified"
            )
    else:
        for name in FOR_CLASSIFIERS:
            if name in asked:
                raise UserError(
                    f"{asked[name]} is for classifiers; {args.data} is to be translated "
                    f"(--label names a column of classes)"
                )
    if not args.pretrained:  # a classifier has such layers, too
        translation.model_config(args, args.vocab_size)
