"""The rows of attention's keys and values, in the order of other toolkits and in ours.

Others have the rows of all keys, then those of all values. `Attention.key_value` has the keys
of the first head, its values, the keys of the second head, ...
"""

from torch import Tensor


def to_keys_then_values(key_value: Tensor, heads: int) -> Tensor:
    """Returns the rows of `Attention.key_value`, (2 * d_model, ...), in the others' order."""
    return key_value.unflatten(0, (heads, 2, -1)).transpose(0, 1).flatten(0, 2)


def from_keys_then_values(rows: Tensor, heads: int) -> Tensor:
    """Returns rows in the others' order, (2 * d_model, ...), in that of `key_value`."""
    return rows.unflatten(0, (2, heads, -1)).transpose(0, 1).flatten(0, 2)
