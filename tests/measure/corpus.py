"""What a large corpus costs: from millions of pairs on disk to the first step.

    python tests/measure/corpus.py                                # 1 million pairs
    python tests/measure/corpus.py 1 10 30                        # with 10 GB of disk free

The pairs are a million of the phrasebook's, again and again in another order. Seconds to encode
them and to plan an epoch; then two processes of train_cpu.py take some steps with them, stop, and
go on: memory of the larger one (its own; the mapped corpus is shared by all, and the system may
drop it), and seconds from start and from --resume to the first step. 0.02 is for a quick try.
"""

import csv
import json
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

MILLION = 1_000_000
MODEL = shlex.split(
    "--layers 1 --d-model 64 --d-ff 64 --vocab-size 3000 "
    "--batch-tokens 2048 --log-every 1 --eval-every 1000000 "
    "--save-every 10"
)


def write(folder: Path, millions: list[str]) -> None:
    """FOLDER/N.de and FOLDER/N.en for each N million pairs."""
    from support.corpora.phrasebook import corpus

    most = min(MILLION, round(max(map(float, millions)) * MILLION))
    pairs = corpus(train=most, valid=0, test=0)["train"]
    for number in millions:
        left = round(float(number) * MILLION)
        with (
            open(folder / f"{number}.de", "w", encoding="utf-8") as de,
            open(folder / f"{number}.en", "w", encoding="utf-8") as en,
        ):
            for turn in range(-(-left // most)):
                random.Random(turn).shuffle(pairs)
                these = pairs[: left - turn * most]
                de.writelines(german + "\n" for german, _ in these)
                en.writelines(english + "\n" for _, english in these)


def encode(prefix: str) -> None:
    """In a process of its own: prints seconds and memory."""
    from data import Batches, Pairs, prepare
    from support.common.paths import CACHE
    from support.corpora.pairs import find_corpus

    began = time.perf_counter()
    folder = prepare(find_corpus(prefix), CACHE / "encoded", vocab_size=3000)
    seconds, peak = (
        time.perf_counter() - began,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )
    began = time.perf_counter()
    Batches(Pairs(folder, "train"), 4096, seed=1)
    print(
        json.dumps({"encode": seconds, "mib": peak / 1024, "plan": time.perf_counter() - began})
    )


def own_memory(pid: int) -> float:
    """MiB of a process that are no file's."""
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024


def first_step(folder: Path, *flags: str) -> tuple[float, float]:
    """Starts train_cpu.py: seconds until metrics.csv has a new row, MiB of its largest process."""
    from conftest import workers_of
    from parity import command

    metrics = folder / "logs" / "run" / "metrics.csv"
    rows = lambda: len(list(csv.reader(open(metrics)))) if metrics.exists() else 1
    before, began = rows(), time.perf_counter()
    run = subprocess.Popen(command("cpu", 2, *flags), cwd=folder, stdout=subprocess.DEVNULL)
    while rows() == before and run.poll() is None:
        time.sleep(0.05)
    if run.poll() is not None:
        sys.exit("train_cpu.py ended before its first step")
    seconds, memory = time.perf_counter() - began, max(map(own_memory, workers_of(run.pid)))
    run.terminate()
    run.wait()
    return seconds, memory


def main() -> None:
    from conftest import CACHE  # importing it names a cache of its own

    millions = sys.argv[1:] or ["1"]
    try:
        with tempfile.TemporaryDirectory() as name:
            write(Path(name), millions)
            print(
                "| million pairs | s to learn a BPE and encode | MiB for it | s to plan "
                "| MiB of a process in training | s from start to first step "
                "| s from --resume |\n|" + " --- |" * 7
            )
            for number in millions:
                prefix, work = f"{name}/{number}", Path(tempfile.mkdtemp(dir=name))
                said = subprocess.run(
                    [sys.executable, __file__, "--encode", prefix],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
                found = json.loads(said)
                start, memory = first_step(work, "--data", prefix, "--name", "run", *MODEL)
                again, _ = first_step(work, "--resume", "logs/run")
                print(
                    f"| {number} | {found['encode']:.0f} | {found['mib']:,.0f} "
                    f"| {found['plan']:.1f} | {memory:,.0f} | {start:.1f} | {again:.1f} |",
                    flush=True,
                )
    finally:
        shutil.rmtree(CACHE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--encode"]:
        encode(sys.argv[2])
    else:
        main()
