"""The speed-up by a second process, for each script, beside what the machine allows.

    python tests/measure/scaling.py --data multi30k  # flags are passed on to all runs
    python tests/measure/scaling.py --modes ddp,fsdp --data multi30k --steps 40

Measures tokens per second with 1 and with 2 processes of one thread, and the ceiling: two
independent runs of 1 process side by side, each with half the tokens of a step. The difference
to the ceiling is the time for communication, including waiting. There are five rounds. The
table has medians. A share is computed within each round, whose runs follow each other, so that
other load on the machine affects them alike; then the median is taken.
"""

import argparse
import statistics
import subprocess
import sys

from parity import command
from printed import header, read_benchmark, row


def speed(*runs: list[str]) -> float:
    """Tokens a second of commands that run at the same time, together."""
    running = [
        subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for run in runs
    ]
    total = 0.0
    for process, (output, errors) in [(run, run.communicate()) for run in running]:
        if process.returncode:
            sys.exit(errors)
        total += read_benchmark(output).speed
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--modes", default="cpu,ddp,fsdp")
    parser.add_argument(
        "--batch-tokens", type=int, default=3072, help="a side, of all processes"
    )
    given, others = parser.parse_known_args()
    flags = ["--benchmark", "--steps", "60", *others]
    tokens = given.batch_tokens
    modes = given.modes.split(",")
    found = {}

    def on_cores(cores: str, mode: str, processes: int, size: int) -> list[str]:
        start = command(mode, processes, *flags, "--batch-tokens", str(size))
        return ["taskset", "-c", cores, *start]

    for _ in range(5):
        for mode in modes:
            for what, runs in {
                "one": [on_cores("0", mode, 1, tokens)],
                "two": [on_cores("0,1", mode, 2, tokens)],
                "ceiling": [on_cores(core, mode, 1, tokens // 2) for core in ("0", "1")],
            }.items():
                found.setdefault((mode, what), []).append(speed(*runs))
    titles = ["1 process", "2 processes", "two runs side by side", "of that ceiling"]
    print(header("script", *titles, "in communication"))
    for mode in modes:
        one, two, ceiling = (found[mode, what] for what in ("one", "two", "ceiling"))
        share = statistics.median(a / b for a, b in zip(two, ceiling))
        medians = [f"{statistics.median(speeds):,.0f}" for speeds in (one, two, ceiling)]
        print(row(f"train_{mode}.py", *medians, f"{share:.0%}", f"{1 - share:.0%}"))


if __name__ == "__main__":
    main()
