"""Optional packages, which are imported only where a flag or a file needs them."""

import importlib.util

from support.common.errors import UserError


def require(package: str, purpose: str, module: str = "") -> None:
    """Raises UserError, with `purpose` in its message, unless a package is installed.

    module: its name in Python, if pip knows it by another one.
    """
    spec = importlib.util.find_spec(module or package)
    # Python takes a folder without code for a module: W&B, for one, leaves a folder wandb/.
    if spec is None or spec.origin is None:
        raise UserError(f"{purpose} needs a package: pip install {package}")
