"""Which task a corpus is for, by the names of its files."""

from support.classification.labelled import is_labelled


def task_type(data: str, label: str = "") -> str:
    """Returns "translation" or "classification"."""
    return "classification" if is_labelled(data, label) else "translation"
