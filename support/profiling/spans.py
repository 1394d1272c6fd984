"""A step of all ranks, laid out for a table and a plot.

    write_spans(combine([step of each rank]), 8, path)

A rank has two lanes. The lane "computing" is filled from the beginning of the step to its
end: with the phases of the step, and where the rank computes nothing because a collective
has not ended, with "waiting" until the last rank joins the collective, and with "exposed" from
then on. The lane "network" has the collectives.
"""

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from support.common.files import write_csv
from support.profiling.timeline import Collective, Step

# A part of a lane: activity, start and end in nanoseconds of the machine's clock, and the
# collective, if it belongs to one. It may be empty, with its end at or before its start.
Interval = tuple[str, int, int, Collective | None]
# When the last rank of a group joined a collective, by the group and the collective's number.
AllJoined = dict[tuple[range, int], int]


class Span(NamedTuple):
    """A part of a step, a row of step.csv."""

    rank: int
    lane: str  # computing or network
    activity: str  # a phase, waiting, exposed; all-reduce, all-gather, reduce-scatter
    unit: str  # whose tensor is sent: an FSDP layer, a DDP bucket, or activations
    start: float  # seconds since the first rank began the step
    seconds: float
    bytes: int  # of the tensor that is sent


def combine(steps: Sequence[Step]) -> list[Span]:
    """Returns the spans of a step. steps: the step of each rank, by clocks that agree."""
    zero = min(start for step in steps for _, start, _ in step.phases)
    all_joined: AllJoined = defaultdict(int)
    for step in steps:
        for each in step.collectives:
            key = (each.group, each.number)
            all_joined[key] = max(all_joined[key], each.start)
    spans = []
    for rank, step in enumerate(steps):
        lanes = {
            "computing": computing_lane(step, all_joined),
            "network": network_lane(step, all_joined),
        }
        for lane, intervals in lanes.items():
            for activity, start, end, collective in intervals:
                if start >= end:
                    continue
                unit = collective.unit if collective else ""
                size = collective.bytes if collective else 0
                begin = (start - zero) / 1e9
                seconds = (end - start) / 1e9
                spans.append(Span(rank, lane, activity, unit, begin, seconds, size))
    return spans


def computing_lane(step: Step, all_joined: AllJoined) -> Iterator[Interval]:
    """Yields the phases of a rank, interrupted by the times in which it waits."""
    for name, start, end in step.phases:
        done = start  # the phase is laid out up to here
        for stall_start, stall_end, collective in step.stalls:
            first = max(stall_start, done)
            last = min(stall_end, end)
            if first >= last:
                continue
            last_join = all_joined[collective.group, collective.number]
            joined = min(max(first, last_join), last)
            yield name, done, first, None
            yield "waiting", first, joined, None
            yield "exposed", joined, last, None
            done = last
        yield name, done, end, None


def network_lane(step: Step, all_joined: AllJoined) -> Iterator[Interval]:
    """Yields the collectives of a rank one by one, each after the wait for other ranks."""
    previous_end = 0
    for collective in sorted(step.collectives, key=lambda collective: collective.end):
        last_join = all_joined[collective.group, collective.number]
        start = max(collective.start, previous_end)
        joined = min(max(start, last_join), collective.end)
        yield "waiting", start, joined, collective
        yield collective.name, joined, collective.end, collective
        previous_end = collective.end


def write_spans(spans: list[Span], step: int, path: Path) -> None:
    """Writes the spans of a step as a table, in CSV."""
    rows: list[list] = [["step", *Span._fields]]
    for span in spans:
        times = [f"{span.start:.6f}", f"{span.seconds:.6f}"]
        rows.append([step, *span[:4], *times, span.bytes])
    write_csv(path, rows)


def read_spans(path: Path) -> tuple[int, list[Span]]:
    """Returns the step and its spans.

    Raises OSError, ValueError, TypeError, KeyError and IndexError.
    """
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    types = Span.__annotations__
    spans = [Span(**{name: types[name](row[name]) for name in types}) for row in rows]
    return int(rows[0]["step"]), spans
