"""The rules that keep the project readable: see house.py."""

import subprocess

import house


def test_no_rule_is_broken():
    assert house.breaches() == []


def test_the_readme_shows_both_diffs_whole():
    text = "\n".join(house.lines("README.md"))
    for one, other in zip(house.PAGES, house.PAGES[1:]):
        said = subprocess.run(
            ["diff", house.ROOT / one, house.ROOT / other], capture_output=True, text=True
        ).stdout
        changes = [
            "-+"[line[0] == ">"] + line[2:] for line in said.splitlines() if line[0] in "<>"
        ]
        block = text.split(f"**`diff {one} {other}`**")[1].split("```")[1].splitlines()
        assert [line for line in block[1:] if not line.startswith("@@")] == changes
