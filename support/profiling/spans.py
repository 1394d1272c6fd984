"""A step of all processes, laid out for a table and a picture.

    write_step(combine([step of each process]), 8, path)

A process has two lanes. In "computing" one span follows the other from the step's begin to its end:
its phases, cut where nothing is computed. There it is "waiting" until the last process comes to an
exchange; from then on the exchange is "exposed". In "network" are the exchanges, one by one.
"""

import csv
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from support.profiling.timeline import Step


class Span(NamedTuple):
    """A part of a step, as step.csv has it."""

    process: int
    lane: str  # computing or network
    what: str  # a phase, waiting, exposed; all-reduce, all-gather, reduce-scatter
    of: str  # FSDP's layer, DDP's bucket
    start: float  # seconds, since the first process has begun the step
    seconds: float
    bytes: int


def combine(steps: list[Step]) -> list[Span]:
    """The spans of a step; steps: of every process, by rank, with clocks that agree."""
    zero, spans = min(step.start for step in steps), []
    joined = when_all_joined(steps)

    def add(
        process: int, lane: str, what: str, of: str, start: int, end: int, size: int
    ) -> None:
        if start < end:
            spans.append(
                Span(process, lane, what, of, (start - zero) / 1e9, (end - start) / 1e9, size)
            )

    for process, step in enumerate(steps):
        ends = [start for start, _ in step.phases[1:]] + [step.end]
        for (start, what), end in zip(step.phases, ends):
            for first, last, i in step.stalls:
                first, last = max(first, start), min(last, end)
                if first < last:
                    middle = min(max(joined[process][i], first), last)
                    add(process, "computing", what, "", start, first, 0)
                    add(process, "computing", "waiting", "", first, middle, 0)
                    add(process, "computing", "exposed", "", middle, last, 0)
                    start = last
            add(process, "computing", what, "", start, end, 0)
        free = 0  # from when on the network is
        for each, all_in in sorted(
            zip(step.exchanges, joined[process]), key=lambda pair: pair[0].end
        ):
            start = max(each.start, free)
            middle = min(max(start, all_in), each.end)
            add(process, "network", "waiting", each.of, start, middle, each.bytes)
            add(process, "network", each.what, each.of, middle, each.end, each.bytes)
            free = each.end
    return spans


def when_all_joined(steps: list[Step]) -> list[list[int]]:
    """For each process when the last one that takes part came to its exchanges.

    An exchange of as many processes as there are shards joins neighbours, with the same quotient
    rank // shards; one across these groups joins ranks with the same remainder.
    """
    keys, latest, n = [], defaultdict(int), len(steps)
    for rank, step in enumerate(steps):
        counts, mine = defaultdict(int), []
        for each in step.exchanges:
            across = each.what == "all-reduce" and each.size < n
            place = rank % (n // each.size) if across else rank // each.size
            group = (each.size, across, place)
            mine.append((group, counts[group]))
            counts[group] += 1
            latest[mine[-1]] = max(latest[mine[-1]], each.start)
        keys.append(mine)
    return [[latest[key] for key in mine] for mine in keys]


def write_step(spans: list[Span], step: int, path: Path) -> None:
    """Writes the spans of a step as a table."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["step", *Span._fields])
        for span in spans:
            table.writerow(
                [step, *span[:4], f"{span.start:.6f}", f"{span.seconds:.6f}", span.bytes]
            )


def read_step(path: Path) -> tuple[int, list[Span]]:
    """The step's number, and its spans. Raises OSError, ValueError, KeyError and IndexError."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return int(rows[0]["step"]), [
        Span(
            int(row["process"]),
            row["lane"],
            row["what"],
            row["of"],
            float(row["start"]),
            float(row["seconds"]),
            int(row["bytes"]),
        )
        for row in rows
    ]
