"""Fonts that have the characters of a figure: matplotlib's own has no Chinese, for example."""

import sys
import warnings
from contextlib import suppress
from pathlib import Path

from matplotlib.font_manager import findfont, findSystemFonts, fontManager, get_font
from matplotlib.text import Text

DEFAULT_FONT = "DejaVu Sans"  # it comes with matplotlib
MAX_SHOWN = 10  # characters that a warning names


def save(figure, path: Path) -> None:
    """Writes a figure in fonts that have its characters: as .pdf, .svg, or else PNG.

    If no installed font has a character, a box stands for it, and a warning says so.
    """
    ending = path.suffix.lower().removeprefix(".")
    file_format = ending if ending in ("pdf", "svg") else "png"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(path, format=file_format)  # only now all labels have their text
        texts = figure.findobj(Text)
        characters = {c for text in texts for c in text.get_text() if c.isprintable()}
        fonts, missing = find_fonts(characters)
        if len(fonts) > 1:
            for text in texts:
                text.set_fontfamily(fonts)
            figure.savefig(path, format=file_format)
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
    with suppress(OSError, RuntimeError):
        font = get_font(path)
        return {c for c in characters if font.get_char_index(ord(c))}
    return set()


def installed_fonts() -> dict[str, str]:
    """Returns the file of each font that is installed, by the font's name."""
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
