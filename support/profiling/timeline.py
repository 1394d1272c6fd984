"""A step of one process, found in what torch.profiler has recorded of it.

step = find_step(read_events(trace), 8, world_size)    # trace: a Chrome trace, as a dict
"""

import math
import re
from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate
from typing import NamedTuple

PHASES = (
    "batch",
    "forward",
    "backward",
    "optimizer",
)  # support/profiling/profiler.py marks them,
DELAY = "network delay"  # and support/distributed/delay.py this
SHORT = 20_000  # ns: a process that does nothing for less is not said to wait
EXCHANGES = {
    "c10d::allreduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
}
WIDTHS = {"double": 8, "long": 8, "int": 4, "float": 4, "bfloat16": 2, "half": 2}  # bytes
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


class Event(NamedTuple):
    """What took time; start and end in nanoseconds of the machine's clock."""

    start: int
    end: int
    name: str
    kind: str  # cpu_op, user_annotation, kernel, cuda_runtime ...
    thread: int  # of what ran on a GPU: its stream
    args: dict


class Exchange(NamedTuple):
    """One exchange, as one process saw it."""

    start: int  # when it began to take part
    end: int
    what: str
    of: str  # FSDP's layer, DDP's bucket
    bytes: int  # of the whole tensor
    sent: float  # bytes that this process has sent
    size: int  # processes that take part


class Step(NamedTuple):
    """One step of one process."""

    start: int
    end: int
    phases: list[tuple[int, str]]  # when it starts, its name
    stalls: list[tuple[int, int, int]]  # start, end, for which exchange
    exchanges: list[Exchange]


def read_events(trace: dict) -> list[Event]:
    """The events of a trace, as export_chrome_trace writes it; one comes before those inside it."""
    base, found = int(trace.get("baseTimeNanoseconds", 0)), []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") not in ("Trace", "gpu_user_annotation"):
            start = base + round(1000 * event["ts"])
            found.append(
                Event(
                    start,
                    start + round(1000 * event["dur"]),
                    event["name"],
                    event.get("cat", ""),
                    event["tid"],
                    event.get("args", {}),
                )
            )
    return sorted(found, key=lambda event: (event.start, -event.end))


def find_step(events: list[Event], number: int, world_size: int) -> Step:
    """The step that the annotation "step NUMBER" encloses.

    On a GPU a phase begins with the first kernel that was launched in it, and the step ends with
    the first kernel of the next.
    """
    mark = [event for event in events if event.name == f"step {number}"][-1]  # begun last
    inside = [event for event in events if mark.start <= event.start < mark.end]
    launches = {
        event.args.get("correlation"): event.start
        for event in events
        if event.kind in ("cuda_runtime", "cuda_driver")
    }
    on_gpu = sorted(
        (
            (launches[event.args["correlation"]], event)
            for event in events
            if event.kind in GPU and event.args.get("correlation") in launches
        ),
        key=lambda pair: pair[0],
    )
    kernels = [(launch, event) for launch, event in on_gpu if not is_nccl(event)]
    busy = [event for event in events if event.kind in GPU and not is_nccl(event)]
    busy = busy or operations(inside, mark.thread)

    def at(time: int) -> int:
        """When the GPU, if there is one, comes to what the process launches from this time on."""
        return min((event.start for launch, event in kernels if launch >= time), default=time)

    marked = [
        event for event in inside if event.name in PHASES and event.kind == "user_annotation"
    ]
    phases = [(at(event.start), event.name) for event in marked]
    phases[0] = (at(mark.start), phases[0][1])
    exchanges = find_exchanges(
        inside,
        [pair for pair in on_gpu if is_nccl(pair[1])],
        [event for event in marked if event.name == "backward"],
        world_size,
    )
    delays = [event for event in inside if event.name == DELAY]
    return Step(
        at(mark.start), at(mark.end), phases, find_stalls(busy, exchanges, delays), exchanges
    )


def is_nccl(event: Event) -> bool:
    return "nccl" in event.name.lower()


def operations(events: list[Event], thread: int) -> list[Event]:
    """What a thread computes; autograd's nodes only where nothing is in them, as they may wait."""
    mine = [event for event in events if event.thread == thread]
    following = [event.start for event in mine[1:]] + [math.inf]
    return [
        event
        for event, then in zip(mine, following)
        if event.kind == "cpu_op"
        and "c10d" not in event.name
        and (event.end <= then or "::" in event.name and "autograd::" not in event.name)
    ]


def nested(events: list[Event]):
    """Each event, and those around it in its thread, the outermost first."""
    threads = defaultdict(list)
    for event in events:
        around = threads[event.thread]
        while around and around[-1].end <= event.start:
            around.pop()
        yield event, around
        around.append(event)


def find_exchanges(
    events: list[Event], nccl: list[tuple[int, Event]], backward: list[Event], world_size: int
) -> list[Exchange]:
    """The exchanges of a step, in the order in which the process asked for them.

    events: of the process, with those of Gloo's threads; nccl: NCCL's kernels, each after the time
    of its launch; backward: the backward passes. DDP's exchanges are those within them.
    """
    gloo, found, shards = defaultdict(list), [], world_size
    for event in events:
        if event.name.startswith("gloo:"):
            gloo[numbers_in(event, 0)].append(event)
    for i, (event, around) in enumerate(nested(events)):
        if event.name not in EXCHANGES or world_size == 1:
            continue
        what, of, size = EXCHANGES[event.name], layer(around), world_size
        taken, given = numbers_in(event, 0), numbers_in(event, 0 if what == "all-reduce" else 1)
        if what != "all-reduce":
            size = shards = max(given, taken) // min(given, taken)
        elif of:  # among those that have the same shard
            size = world_size // shards
        elif any(outer.start <= event.start < outer.end for outer in backward):
            of = f"bucket {1 + sum(other.of.startswith('bucket') for other in found)}"
        kernels = [kernel for launch, kernel in nccl if event.start <= launch < event.end]
        carried = (kernels or gloo[given] or [event]).pop(0)
        within = [other for other in events[i : i + 5] if other.start < event.end]
        whole = max(given, taken) * width([carried, *within])
        # Gloo does a reduce-scatter as an all-reduce, which sends twice as much.
        twice = what == "all-reduce" or carried.name == "gloo:all_reduce"
        delay = next((other for other in within if other.name == DELAY), None)
        start = delay.start if delay and not kernels else carried.start
        found.append(
            Exchange(
                start,
                carried.end,
                what,
                of,
                whole,
                (1 + twice) * whole * (size - 1) / size,
                size,
            )
        )
    return found


def layer(around: list[Event]) -> str:
    """FSDP's layer whose work the innermost event is; "all else" for what is in no layer."""
    names = [re.fullmatch(r"FSDP::\w+(?: \((.+)\))?", event.name) for event in around]
    return next((match[1] or "all else" for match in reversed(names) if match), "")


def numbers_in(event: Event, i: int) -> int:
    """How many numbers an operation's i-th tensor has, or all tensors of its i-th list."""
    dims = event.args["Input Dims"][i]
    return sum(map(math.prod, dims)) if dims and isinstance(dims[0], list) else math.prod(dims)


def width(events: list[Event]) -> int:
    """Bytes of one of the numbers that are exchanged, by the first event that says their type."""
    for event in events:
        for name in [*event.args.get("Input type", []), event.args.get("dtype", "")]:
            for part in name.lower().removeprefix("c10::").split()[:1]:
                if part in WIDTHS:
                    return WIDTHS[part]
    return 4


def find_stalls(
    busy: list[Event], exchanges: list[Exchange], delays: list[Event]
) -> list[tuple[int, int, int]]:
    """When a process does nothing until an exchange ends, or until a slow network begins with it.

    Returns start, end, and the number of the exchange.
    """
    starts = [event.start for event in busy]
    ends = [0, *accumulate((event.end for event in busy), max)]
    found, until = [], 0
    waits = [
        (max(exchange.start, ends[bisect_left(starts, exchange.end)]), exchange.end, i)
        for i, exchange in enumerate(exchanges)
    ]
    waits += [
        (delay.start, delay.end, i)
        for delay in delays
        for i, exchange in enumerate(exchanges)
        if exchange.start == delay.start
    ]
    for start, end, i in sorted(waits, key=lambda wait: wait[1]):
        start = max(start, until)
        if end - start > SHORT:
            found.append((start, end, i))
            until = end
    return found
