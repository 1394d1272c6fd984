"""The documents show the diffs of the training scripts whole, and link to files that exist."""

import re
from pathlib import Path

import pytest
from conftest import ROOT
from test_house import changed_lines

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "data.md",
    ROOT / "docs" / "extending.md",
    ROOT / "docs" / "lesson.md",
    ROOT / "docs" / "own_script.md",
    ROOT / "docs" / "running.md",
    ROOT / "batch" / "README.md",
    ROOT / "configs" / "README.md",
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "faults.md",
    ROOT / "support" / "README.md",
    *sorted((ROOT / "logs" / "reference").rglob("*.md")),
]


def shown_lines(text: str) -> list[str]:
    """Returns the lines of all diff blocks of a text."""
    blocks = re.findall(r"^```diff\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def anchors(text: str) -> list[str]:
    """Returns the anchors that GitHub gives to the headings of a Markdown text."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize(
    "document, one, other",
    [
        ("README.md", "train_cpu.py", "train_ddp.py"),
        ("docs/lesson.md", "train_cpu.py", "train_ddp.py"),
        ("docs/lesson.md", "train_ddp.py", "train_fsdp.py"),
        ("docs/lesson.md", "train_fsdp.py", "train_tp.py"),
    ],
)
def test_a_diff_is_shown_whole(document: str, one: str, other: str):
    sections = (ROOT / document).read_text(encoding="utf-8").split("\n## ")
    titles = (f"From {one} to {other}", f"What changes from `{one}` to `{other}`")
    section = next(text for text in sections if text.startswith(titles))
    assert shown_lines(section) == changed_lines(one, other)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path):
    text = document.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        path = document.parent / target if target else document
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_the_readme_says_how_long_files_are():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\[`.*?) \| ([\d, ]+) \|", text, re.MULTILINE)
    assert rows
    for names, lengths in rows:
        files = re.findall(r"`(.*?)`", names)
        for name, said in zip(files, lengths.split(", "), strict=True):
            lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
            assert abs(lines - int(said)) < 10, f"{name} has {lines} lines"


def test_the_map_names_every_module():
    text = (ROOT / "support" / "README.md").read_text(encoding="utf-8")
    named = []
    for part in text.split("| **")[1:]:
        folder = part.split("/**")[0]
        files = re.findall(
            r"`(\w+\.py)`", "".join(re.findall(r"^\| `.*?\|", part, re.MULTILINE))
        )
        named += [f"{folder}/{file}" for file in files]
    modules = [f"{path.parent.name}/{path.name}" for path in (ROOT / "support").glob("*/*.py")]
    assert sorted(named) == sorted(modules)
