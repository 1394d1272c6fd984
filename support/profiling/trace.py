"""One trace of all processes, for https://ui.perfetto.dev or chrome://tracing."""

import gzip
import json
from pathlib import Path

from support.profiling.spans import Span

# The lanes of a step, shown as threads of the process; no thread, and no stream, has such a number.
LANES = {"computing": 1_000_000_001, "network": 1_000_000_002}


def write_trace(path: Path, traces: list[bytes], steps: list[tuple[int, list[Span]]]) -> None:
    """Writes the traces of all processes, by rank, as one: a group of tracks for each process.

    traces: Chrome traces, compressed. steps: when each began, in nanoseconds, and its spans: they
    are shown above the threads.
    """
    with gzip.open(path, "wt", encoding="utf-8") as file:
        begin = None
        for rank, packed in enumerate(traces):
            trace = json.loads(gzip.decompress(packed))  # one at a time: they are large
            base = int(trace.get("baseTimeNanoseconds", 0))
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n' if rank == 0 else ",\n")
            begin = base if begin is None else begin
            mine = [
                event
                for event in trace["traceEvents"]
                if isinstance(event.get("tid"), int)
                and not event["name"].startswith("process_")
            ]
            for event in mine:
                event["ts"] += (base - begin) / 1000  # microseconds
                if isinstance(event.get("id"), int):  # of an arrow: no other process has it
                    event["id"] += rank << 32
            mine += [
                {
                    "ph": "X",
                    "name": " ".join(filter(None, (span.what, span.of))),
                    "tid": LANES[span.lane],
                    "ts": (zero - begin) / 1000 + 1e6 * span.start,
                    "dur": 1e6 * span.seconds,
                    "args": {"bytes": span.bytes},
                }
                for zero, spans in steps
                for span in spans
                if span.process == rank
            ]
            names = [
                ("process_name", 0, {"name": f"process {rank}"}),
                ("process_sort_index", 0, {"sort_index": rank}),
            ]
            for lane, thread in LANES.items():
                names += [
                    ("thread_name", thread, {"name": lane}),
                    ("thread_sort_index", thread, {"sort_index": thread - 2**31}),
                ]
            mine += [
                {"ph": "M", "name": name, "tid": thread, "args": args}
                for name, thread, args in names
            ]
            file.write(",\n".join(json.dumps(event | {"pid": rank}) for event in mine))
        file.write("\n]}\n")
