"""Finds one step of one rank in what torch.profiler has recorded of it.

Example:
    # trace: the Chrome trace of rank 0 of two, as a dict
    step = find_step(read_events(trace), 8, groups_of(rank=0, world_size=2))
"""

import math
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from itertools import accumulate
from typing import NamedTuple

PHASES = ("batch", "forward", "backward", "optimizer")  # profiler.py marks where they begin
DELAY = "network delay"  # the range that support/distributed/delay.py records
MIN_STALL = 20_000  # ns; shorter pauses do not count as waiting
COLLECTIVES = {
    "c10d::allreduce_": "all-reduce",
    "c10d::_allgather_base_": "all-gather",
    "c10d::_reduce_scatter_base_": "reduce-scatter",
}
MAX_NESTED = 5  # events, from a collective's own on, searched for its delay and dtype
DTYPE_BYTES = {"double": 8, "long": 8, "int": 4, "float": 4, "bfloat16": 2, "half": 2}
CALLERS = ("FSDP::", "_c10d_functional::")  # of collectives: FSDP, and DTensor
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


class Event(NamedTuple):
    """A range of the trace; start and end are in nanoseconds of the machine's clock."""

    start: int
    end: int
    name: str
    category: str  # cpu_op, user_annotation, kernel, cuda_runtime ...
    thread: int  # of GPU work: its stream
    args: dict


class Collective(NamedTuple):
    """A collective operation, as one rank saw it."""

    start: int  # when this rank joined
    end: int
    name: str
    unit: str  # whose tensor: an FSDP layer, a DDP bucket, activations, or "" if not known
    bytes: int  # of the whole tensor
    sent: float  # bytes that this rank sent
    group: range  # ranks that take part
    number: int  # among the collectives of the group in this step


class Groups(NamedTuple):
    """The ranks with which one rank communicates, itself included."""

    all: range
    shards: range  # that have the shards of the same parameters
    copies: range  # that have the same shard
    tensor: range  # that compute each layer together


class Step(NamedTuple):
    """One step of one rank."""

    phases: list[tuple[str, int, int]]  # name, start, end; the first begins with the step
    stalls: list[tuple[int, int, Collective]]  # start, end, and what it waits for
    collectives: list[Collective]


def read_events(trace: dict) -> list[Event]:
    """Returns the ranges of a Chrome trace, sorted by start, each before those inside it."""
    base = int(trace.get("baseTimeNanoseconds", 0))
    events = []
    for entry in trace["traceEvents"]:
        category = entry.get("cat", "")
        if entry.get("ph") != "X" or category in ("Trace", "gpu_user_annotation"):
            continue
        start = base + round(1000 * entry["ts"])  # from microseconds
        end = start + round(1000 * entry["dur"])
        args = entry.get("args", {})
        events.append(Event(start, end, entry["name"], category, entry["tid"], args))
    return sorted(events, key=lambda event: (event.start, -event.end))


def groups_of(rank: int, world_size: int, replicas: int = 1, tensor: int = 1) -> Groups:
    """Returns the groups of a rank.

    replicas: copies of the model that FSDP shards; tensor: ranks that share each layer. The
    ranks of a copy, and those that share layers, are neighbours.
    """
    size = world_size // replicas  # ranks of a copy
    first = rank // size * size  # of this copy
    first_of_layer = rank // tensor * tensor
    return Groups(
        all=range(world_size),
        shards=range(first + rank % tensor, first + size, tensor),
        copies=range(rank % size, world_size, size),
        tensor=range(first_of_layer, first_of_layer + tensor),
    )


def find_step(events: list[Event], number: int, groups: Groups) -> Step:
    """Returns the step that the range "step NUMBER" encloses.

    On a GPU a phase begins with the first kernel that was launched in it, and the step ends
    with the first kernel of the next step.
    """
    # A step that was interrupted by an evaluation has begun twice. The last range counts.
    step = [event for event in events if event.name == f"step {number}"][-1]
    inside = [event for event in events if step.start <= event.start < step.end]
    launched = gpu_events_by_launch(events)
    kernels = [(launch, event) for launch, event in launched if not is_nccl(event)]
    nccl = [(launch, event) for launch, event in launched if is_nccl(event)]

    def execution_time(time: int) -> int:
        """Returns when the first kernel launched from `time` on begins; without one, `time`."""
        return min((event.start for launch, event in kernels if launch >= time), default=time)

    marked = marked_phases(step, inside)
    phases = [(name, execution_time(start), execution_time(end)) for name, start, end in marked]
    backward_passes = [range(start, end) for name, start, end in marked if name == "backward"]
    collectives = []
    if len(groups.all) > 1:  # one rank alone sends nothing
        collectives = find_collectives(inside, nccl, backward_passes, groups)
    busy = [
        event for event in events if event.category in GPU_CATEGORIES and not is_nccl(event)
    ]
    if not busy:
        busy = cpu_operations(inside, step.thread)
    delays = [event for event in inside if event.name == DELAY]
    stalls = find_stalls(busy, collectives, delays)
    return Step(phases, stalls, collectives)


def marked_phases(step: Event, inside: list[Event]) -> list[tuple[str, int, int]]:
    """Returns the phases that the CPU went through in a step: name, start and end of each.

    The first begins with the step. Each of the others begins at its mark.
    """
    marks = [
        event
        for event in inside
        if event.name in PHASES and event.category == "user_annotation"
    ]
    starts = [step.start] + [mark.start for mark in marks[1:]]
    ends = [*starts[1:], step.end]
    return [(mark.name, start, end) for mark, start, end in zip(marks, starts, ends)]


def is_nccl(event: Event) -> bool:
    """Returns whether a GPU event is one of NCCL's kernels."""
    return "nccl" in event.name.lower()


def gpu_events_by_launch(events: list[Event]) -> list[tuple[int, Event]]:
    """Returns (launch time, event) of what ran on the GPU, in the order of the launches."""
    launch_times = {
        event.args.get("correlation"): event.start
        for event in events
        if event.category in ("cuda_runtime", "cuda_driver")
    }
    launched = []
    for event in events:
        correlation = event.args.get("correlation")
        if event.category in GPU_CATEGORIES and correlation in launch_times:
            launched.append((launch_times[correlation], event))
    return sorted(launched, key=lambda pair: pair[0])


def cpu_operations(events: list[Event], thread: int) -> list[Event]:
    """Returns the operations that a thread computes.

    A node of autograd counts only if nothing is nested in it, because its hooks may wait for
    collectives.
    """
    in_thread = [event for event in events if event.thread == thread]
    next_starts = [event.start for event in in_thread[1:]] + [math.inf]
    operations = []
    for event, next_start in zip(in_thread, next_starts):
        if event.category != "cpu_op" or "c10d" in event.name:
            continue
        is_leaf = event.end <= next_start
        is_node = "::" not in event.name or "autograd::" in event.name
        if is_leaf or not is_node:
            operations.append(event)
    return operations


def find_collectives(
    events: list[Event],
    nccl: list[tuple[int, Event]],
    backward_passes: list[range],
    groups: Groups,
) -> list[Collective]:
    """Returns the collectives of a step, in the order in which the rank called them.

    events: those of the step, of all threads, Gloo's included. nccl: (launch time, kernel) of
    NCCL's kernels. backward_passes: their times; DDP's buckets are all-reduced within them.
    """
    gloo: dict[int, list[Event]] = defaultdict(list)  # by the input's number of elements
    for event in events:
        if event.name.startswith("gloo:"):
            gloo[count_elements(event, 0)].append(event)
    collectives = []
    num_collectives: Counter[range] = Counter()  # of each group, so far
    buckets = 0
    callers = [event for event in events if event.name.startswith(CALLERS)]
    for i, event in enumerate(events):
        if event.name not in COLLECTIVES:
            continue
        name = COLLECTIVES[event.name]
        unit, group = find_group(name, names_around(event, callers), groups)
        in_backward = any(event.start in backward for backward in backward_passes)
        if name == "all-reduce" and not unit and in_backward:
            buckets += 1
            unit = f"bucket {buckets}"
        output_size = input_size = count_elements(event, 0)
        if name != "all-reduce":  # the others have two tensors: one whole, one a shard
            input_size = count_elements(event, 1)
        within = [other for other in events[i : i + MAX_NESTED] if other.start < event.end]
        transport_event = find_transport(event, input_size, gloo, nccl)
        start = start_of(transport_event, within)
        size = max(output_size, input_size) * bytes_per_element([transport_event, *within])
        sent = bytes_sent(name, transport_event, size, len(group))
        number = num_collectives[group]
        num_collectives[group] += 1
        collectives.append(
            Collective(start, transport_event.end, name, unit, size, sent, group, number)
        )
    return collectives


def names_around(event: Event, callers: list[Event]) -> list[str]:
    """Returns the names of the callers that enclose an event, the innermost last."""
    return [
        caller.name
        for caller in callers
        if caller.thread == event.thread and caller.start <= event.start < caller.end
    ]


def find_group(name: str, calling: list[str], groups: Groups) -> tuple[str, range]:
    """Returns the unit of a collective ("" if unknown), and the ranks that take part.

    calling: see `names_around`.
    """
    unit = fsdp_layer(calling)
    if name != "all-reduce":
        return unit, groups.shards
    if unit:  # the ranks that have the same shard sum its gradients
        return unit, groups.copies
    if len(groups.tensor) > 1 and calling:
        return "activations", groups.tensor
    return "", groups.all


def bytes_sent(name: str, transport_event: Event, size: int, group_size: int) -> float:
    """Returns the bytes that each rank sends in a collective of a tensor of `size` bytes.

    An all-reduce sends twice as many as the others. Gloo implements a reduce-scatter as an
    all-reduce.
    """
    is_all_reduce = name == "all-reduce" or transport_event.name == "gloo:all_reduce"
    passes = 2 if is_all_reduce else 1
    return passes * size * (group_size - 1) / group_size


def start_of(transport_event: Event, within: list[Event]) -> int:
    """Returns when a rank joins a collective: on CPUs, before the delay of --delay-ms."""
    if transport_event.category not in GPU_CATEGORIES:
        for event in within:
            if event.name == DELAY:
                return event.start
    return transport_event.start


def find_transport(
    call_event: Event,
    input_size: int,
    gloo: dict[int, list[Event]],
    nccl: list[tuple[int, Event]],
) -> Event:
    """Returns the event that transferred the data: NCCL's kernel, or one taken out of `gloo`.

    If neither was recorded, it is the call itself. input_size: elements.
    """
    for launch, kernel in nccl:
        if call_event.start <= launch < call_event.end:
            return kernel
    return gloo[input_size].pop(0) if gloo[input_size] else call_event


def fsdp_layer(calling: list[str]) -> str:
    """Returns the layer that FSDP works on inside these events, or "" outside of FSDP.

    For parameters that are in no layer, it is "root".
    """
    for name in reversed(calling):
        match = re.fullmatch(r"FSDP::\w+(?: \((.+)\))?", name)
        if match:
            return match[1] or "root"
    return ""


def count_elements(event: Event, i: int) -> int:
    """Returns the elements of an operation's i-th argument, a tensor or a list of tensors."""
    dims = event.args["Input Dims"][i]
    is_list = bool(dims) and isinstance(dims[0], list)
    return sum(map(math.prod, dims)) if is_list else math.prod(dims)


def bytes_per_element(events: list[Event]) -> int:
    """Returns the bytes per element, by the first event that names a known dtype; else 4."""
    for event in events:
        for name in [*event.args.get("Input type", []), event.args.get("dtype", "")]:
            words = name.lower().removeprefix("c10::").split()
            if words and words[0] in DTYPE_BYTES:
                return DTYPE_BYTES[words[0]]
    return 4


def find_stalls(
    busy: list[Event], collectives: list[Collective], delays: list[Event]
) -> list[tuple[int, int, Collective]]:
    """Returns (start, end, collective) of the times in which a rank waits for a collective.

    A rank waits where it computes nothing until a collective, or the delay before it, ends.
    busy: the events in which it computes, sorted by start.
    """
    starts = [event.start for event in busy]
    # ends[n] is when the first n events have all ended.
    ends = [0, *accumulate((event.end for event in busy), max)]
    waits = []
    for collective in collectives:
        idle_since = ends[bisect_left(starts, collective.end)]
        waits.append((max(collective.start, idle_since), collective.end, collective))
        own_delays = [delay for delay in delays if delay.start == collective.start]
        waits += [(delay.start, delay.end, collective) for delay in own_delays]
    stalls = []
    last_end = 0
    for start, end, collective in sorted(waits, key=lambda wait: wait[1]):
        start = max(start, last_end)
        if end - start > MIN_STALL:
            stalls.append((start, end, collective))
            last_end = end
    return stalls
