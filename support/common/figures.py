"""What all figures share: matplotlib without a screen, and fonts for any text.

matplotlib = load_matplotlib("--attention")  # before matplotlib is imported
...
save(figure, Path("attention.png"))
"""

import logging
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path

from support.common.errors import UserError, first_line
from support.common.packages import require

DEFAULT_FONT = "DejaVu Sans"  # it comes with matplotlib
MAX_SHOWN = 10  # characters that a warning names


def load_matplotlib(purpose: str):
    """Returns the module, with its own settings; what draws imports it after this call.

    Raises UserError, with `purpose` in its message, where it is not installed.
    """
    require("matplotlib", purpose)
    os.environ["MPLBACKEND"] = "agg"  # a notebook's would show figures; here they are files
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        import matplotlib
    except (ImportError, OSError) as problem:
        raise UserError(
            f"{purpose}: matplotlib cannot be imported ({first_line(problem, 200)})"
        ) from problem
    matplotlib.rcdefaults()  # not the user's, which may need LaTeX
    return matplotlib


def save(figure, path: Path) -> None:
    """Writes a figure to a PNG file, in fonts that have its characters.

    If no installed font has a character, a box stands for it, and a warning says so.
    """
    from matplotlib.text import Text

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(path, format="png")  # only now all labels have their text
        texts = figure.findobj(Text)
        characters = {c for text in texts for c in text.get_text() if c.isprintable()}
        fonts, missing = find_fonts(characters)
        if len(fonts) > 1:
            for text in texts:
                text.set_fontfamily(fonts)
            figure.savefig(path, format="png")
    if missing:
        some = " ".join(sorted(missing)[:MAX_SHOWN])
        print(
            f"warning: {path}: no installed font has {some}, so boxes stand for them; "
            f"apt install fonts-noto-cjk (Chinese, Japanese, Korean) or fonts-noto-core",
            file=sys.stderr,
        )


def find_fonts(characters: set[str]) -> tuple[list[str], set[str]]:
    """Returns fonts that together have the characters, and the characters that none has.

    The first is matplotlib's own. The others follow in the order of how many they have of the
    characters that it lacks.
    """
    from matplotlib.font_manager import findfont

    fonts = [DEFAULT_FONT]
    missing = characters - characters_of(findfont(DEFAULT_FONT), characters)
    if not missing:
        return fonts, missing
    coverage = {
        name: characters_of(path, missing) for name, path in sorted(installed_fonts().items())
    }
    for name in sorted(coverage, key=lambda name: -len(coverage[name])):
        if coverage[name] & missing:
            fonts.append(name)
            missing = missing - coverage[name]
    return fonts, missing


def characters_of(path: str, characters: set[str]) -> set[str]:
    """Returns those of the characters that a font file has; none if it cannot be read."""
    from matplotlib.font_manager import get_font

    with suppress(OSError, RuntimeError):
        font = get_font(path)
        return {c for c in characters if font.get_char_index(ord(c))}
    return set()


def installed_fonts() -> dict[str, str]:
    """Returns the file of each font that is installed, by the font's name."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {font.fname for font in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in known:  # it was installed after matplotlib made its list
            with suppress(Exception):  # of many types, for files that it cannot use
                fontManager.addfont(path)
    return {
        font.name: font.fname
        for font in fontManager.ttflist
        if font.style == "normal" and "LastResort" not in font.fname  # it has only boxes
    }
