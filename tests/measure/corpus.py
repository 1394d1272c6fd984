"""What a large corpus costs: from millions of pairs on disk to the first step.

    python tests/measure/corpus.py          # 1 million pairs
    python tests/measure/corpus.py 1 10 30  # needs 10 GB of free disk

The pairs are a million of the phrasebook's, repeated in another order. Measures the seconds to
encode them and to plan an epoch. Then train_cpu.py with two processes takes some steps, stops
and resumes: measures the memory of the larger process, without the memory-mapped corpus, which
all share and which the system may drop, and the seconds to the first step from the start and
from --resume. 0.02 is for a quick try.
"""

import argparse
import json
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[number]) for number in (1, 2)]

from printed import header, row

MILLION = 1_000_000
MODEL = shlex.split(
    "--layers 1 --d-model 64 --d-ff 64 --vocab-size 3000 "
    "--batch-tokens 2048 --log-every 1 --eval-every 1000000 "
    "--save-every 10"
)

TITLES = [
    "million pairs",
    "s to learn a BPE and encode",
    "MiB for it",
    "s to plan",
    "MiB of a process in training",
    "s from start to first step",
    "s from --resume",
]


def write(folder: Path, millions: list[str]) -> None:
    """FOLDER/N.de and FOLDER/N.en for each N million pairs."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from phrasebook.generate import corpus

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
                de.writelines(german + "\n" for german, _, _ in these)
                en.writelines(english + "\n" for _, english, _ in these)


def encode(prefix: str) -> None:
    """In a process of its own: prints seconds and memory."""
    from data import Batches, Pairs
    from support.common.paths import CACHE
    from support.corpora.pairs import find_corpus
    from support.translation.encoding import prepare

    began = time.perf_counter()
    folder = prepare(find_corpus(prefix), CACHE / "encoded", vocab_size=3000)
    encode_seconds = time.perf_counter() - began
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    Batches(Pairs(folder, "train"), 4096, seed=1)
    plan_seconds = time.perf_counter() - began
    result = {"encode": encode_seconds, "mib": peak_kib / 1024, "plan": plan_seconds}
    print(json.dumps(result))


def own_memory(pid: int) -> float:
    """A process's memory in MiB, without mapped files."""
    status = Path(f"/proc/{pid}/status").read_text()
    kib = re.search(r"^RssAnon:\s+(\d+) kB", status, re.MULTILINE)[1]
    return int(kib) / 1024


def first_step(folder: Path, *flags: str) -> tuple[float, float]:
    """Starts train_cpu.py; returns seconds to the first step and the largest process's MiB."""
    from conftest import workers_of
    from parity import command

    metrics = folder / "logs" / "run" / "metrics.csv"

    def rows() -> int:
        if not metrics.exists():
            return 1
        return len(metrics.read_text().splitlines())

    before = rows()
    began = time.perf_counter()
    run = subprocess.Popen(command("cpu", 2, *flags), cwd=folder, stdout=subprocess.DEVNULL)
    while rows() == before and run.poll() is None:
        time.sleep(0.05)
    if run.poll() is not None:
        sys.exit("train_cpu.py ended before its first step")
    seconds = time.perf_counter() - began
    memory = max(map(own_memory, workers_of(run.pid)))
    run.terminate()
    run.wait()
    return seconds, memory


def main() -> None:
    from conftest import CACHE  # importing it names a cache of its own

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("millions", nargs="*", default=["1"], help="of pairs [1]")
    millions = parser.parse_args().millions
    try:
        with tempfile.TemporaryDirectory() as name:
            write(Path(name), millions)
            print(header(*TITLES))
            for number in millions:
                prefix = f"{name}/{number}"
                work = Path(tempfile.mkdtemp(dir=name))
                said = subprocess.run(
                    [sys.executable, __file__, "--encode", prefix],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
                found = json.loads(said)
                start, memory = first_step(work, "--data", prefix, "--name", "run", *MODEL)
                again, _ = first_step(work, "--resume", "logs/run")
                encoding = [f"{found['encode']:.0f}", f"{found['mib']:,.0f}"]
                training = [f"{memory:,.0f}", f"{start:.1f}", f"{again:.1f}"]
                print(row(number, *encoding, f"{found['plan']:.1f}", *training), flush=True)
    finally:
        shutil.rmtree(CACHE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--encode"]:
        encode(sys.argv[2])
    else:
        main()
