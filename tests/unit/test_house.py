"""The rules that keep the project readable: see house.py."""

import house


def test_no_rule_is_broken():
    assert house.breaches() == []
