"""Checks and measures on one GPU what can only be seen there: Markdown tables.

    python tests/measure/gpu.py                        # all sections
    python tests/measure/gpu.py --only speed,memory    # some of them
    python tests/measure/gpu.py --write                # keeps them in logs/reference/gpu/
    python tests/measure/gpu.py --device cpu --small   # does it work? some minutes on two cores

| section | shows |
| --- | --- |
| correctness | losses and norms of each step are those of train_cpu.py on the CPU |
| resume | a run that is resumed ends with the weights of an undisturbed one, bit for bit |
| speed | tokens a second and MFU in three sizes, with and without --compile |
| decoding | sentences a second of translate.py on the GPU and on the CPU |
| memory | the peak, beside the formula of support/planning/footprint.py |
| profile | what some steps call, and which kernels take the time; --write keeps its pictures |

`correctness`, `resume` and `memory` run up to --jobs scripts at once. A section that fails
prints its error, and the next one follows; the exit status is then 1.
"""

import csv
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import parity
import plan
import torch
from printed import header, read_benchmark, row

from model import ModelConfig
from support.common.errors import UserError, make_parser, run_main
from support.common.hardware import device_name, find_device
from support.corpora import phrasebook
from support.planning.estimate import Estimate
from support.planning.footprint import TrainingStep
from support.planning.machines import HARDWARE

DEFAULT = {"layers": 3, "d_model": 256, "heads": 4, "d_ff": 1024}
SIZES = {  # 8, 59 and 207 million parameters
    "default": DEFAULT | {"vocab_size": 8000},
    "base": {"layers": 6, "d_model": 512, "heads": 8, "d_ff": 2048, "vocab_size": 30_000},
    "large": {"layers": 6, "d_model": 1024, "heads": 16, "d_ff": 4096, "vocab_size": 30_000},
}
SPEEDS = (("default", 4096), ("base", 25_000), ("large", 25_000))  # size, tokens of a step
TINY = {"layers": 1, "d_model": 64, "heads": 2, "d_ff": 128, "vocab_size": 1000}
SHORT = ["--max-length", "24"]  # an untrained model translates until there
MODES = ("ddp", "fsdp", "tp1")  # as parity.command names them
RUN_SECONDS = 240  # after which a run counts as hung
LOSS_LIMIT = 1e-4  # relative differences of a step in fp32 that rounding explains
NORM_LIMIT = 1e-3
MOST_KERNELS = 20  # shown of a profile
MIB = 2**20


@dataclass
class Bench:
    """What the sections have in common."""

    device: str  # "cuda", or "cpu" for trying this script
    small: bool  # tiny models and few steps
    folder: Path  # where the scripts run, and write logs/
    report: Path | None = None  # the folder that --write keeps
    jobs: int = 1  # scripts that run at once, where no time is measured

    def train(self, mode: str, *flags: str, device: str = "") -> str:
        """Runs train_MODE.py in one process, and returns what it prints.

        mode: as in parity.command. Raises RuntimeError.
        """
        device = device or self.device
        return self.run(parity.command(mode, 1, *flags, device=device))

    def run(self, command: list[str]) -> str:
        """Runs a command in the folder, and returns what it prints.

        Raises RuntimeError, also if it takes longer than RUN_SECONDS.
        """
        with subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                stdout, stderr = process.communicate(timeout=RUN_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # torchrun's workers as well
                stdout, stderr = process.communicate()
                stderr += f"\nerror: it took longer than {RUN_SECONDS} s"
        if process.returncode:
            errors = re.findall(r"^.*(?:Error|error|Unsupported): .*", stderr, re.M)
            last_lines = stderr.splitlines()[-3:]
            raise RuntimeError("\n".join([" ".join(command), *(errors[:3] or last_lines)]))
        return stdout

    def train_all(self, runs: dict[Any, tuple[str, ...]]) -> dict[Any, str]:
        """Runs `train` with each of the arguments, several at once; returns what they print."""
        # Otherwise each could measure the machine's peak beside the others, and keep that.
        peak = ("--hardware-tflops", "1")
        with ThreadPoolExecutor(self.jobs) as pool:
            printed = pool.map(lambda flags: self.train(*flags, *peak), runs.values())
            return dict(zip(runs, printed))

    def metrics(self, name: str, column: str) -> list[float]:
        """Returns a column of the run's metrics.csv."""
        with open(self.folder / "logs" / name / "metrics.csv", newline="") as file:
            return [float(row[column]) for row in csv.DictReader(file)]


# --- The sections: each yields the lines of its report, and raises RuntimeError if it fails ---


def correctness(bench: Bench) -> Iterator[str]:
    """Compares each script with train_cpu.py on the CPU, step by step, from the same seed."""
    steps = 5 if bench.small else 40
    flags = [*parity.FLAGS, *parity.write_corpus(bench.folder), "--steps", str(steps)]
    flags += [*SHORT] if bench.small else [*plan.shape_flags(DEFAULT), "--batch-tokens", "4096"]
    precisions = ["fp32"] if bench.small else ["fp32", "bf16", "fp16"]
    cases = [(precision, mode, "") for precision in precisions for mode in MODES]
    if not bench.small:
        cases.remove(("fp16", "tp1", ""))  # train_tp.py has no fp16
        cases.append(("fp32", "ddp", "--compile"))
    bench.train("cpu", "--name", "cpu", *flags, device="cpu")
    runs = {}
    for precision, mode, more in cases:
        name = f"{precision}-{mode}{more}"
        runs[name] = (mode, "--name", name, *flags, "--precision", precision, *more.split())
    bench.train_all(runs)
    yield f"{steps} steps without dropout. Largest relative difference of a step:\n"
    yield header("script", "precision", "train_loss", "grad_norm")
    too_far = []
    for name, (precision, mode, more) in zip(runs, cases):
        script = f"{parity.title(mode)} {more}".strip()
        loss = largest_difference(bench, name, "train_loss")
        norm = largest_difference(bench, name, "grad_norm")
        yield row(f"`{script}`", precision, f"{loss:.1e}", f"{norm:.1e}")
        if precision == "fp32" and not (loss < LOSS_LIMIT and norm < NORM_LIMIT):
            too_far.append(script)
    if too_far:
        raise RuntimeError(
            f"{', '.join(too_far)}: more than {LOSS_LIMIT} (loss) or {NORM_LIMIT} (norm) apart"
        )


def largest_difference(bench: Bench, name: str, column: str) -> float:
    """Returns the largest relative difference of a column from that of train_cpu.py."""
    expected = bench.metrics("cpu", column)
    found = bench.metrics(name, column)
    return max(abs(a / b - 1) for a, b in zip(found, expected, strict=True))


def resume(bench: Bench) -> Iterator[str]:
    """Compares a run that is resumed with an undisturbed one, and this one with another."""
    whole, part = (6, 2) if bench.small else (40, 15)
    flags = [*parity.FLAGS, *parity.write_corpus(bench.folder), "--dropout", "0.1"]
    flags += ["--precision", "auto", *SHORT]
    runs = {}
    for name, steps in (("whole", whole), ("again", whole), ("parts", part)):
        runs[name] = ("ddp", "--name", name, *flags, "--steps", str(steps))
    bench.train_all(runs)
    bench.train("ddp", "--resume", "logs/parts", "--steps", str(whole))
    yield f"Largest difference of a weight or moment after {whole} steps from another run:\n"
    yield header("run", "difference")
    titles = {"again": "undisturbed", "parts": f"ended after step {part}, then resumed"}
    differences = {name: state_difference(bench, name) for name in titles}
    for name, title in titles.items():
        yield row(title, f"{differences[name]:.1e}")
    if differences["again"]:
        raise RuntimeError("two undisturbed runs differ: a kernel does not add up in order")
    if differences["parts"]:
        raise RuntimeError("the resumed run differs")


def state_difference(bench: Bench, name: str) -> float:
    """Returns the largest difference of the last checkpoint from that of the run `whole`."""
    states = []
    for run in ("whole", name):
        saved = torch.load(bench.folder / "logs" / run / "last.pt", weights_only=True)
        moments = saved["optimizer"]["state"].values()
        tensors = [value for state in moments for value in state.values()]
        states.append([*saved["model"].values(), *tensors])
    return max(float((a - b).abs().max()) for a, b in zip(*states, strict=True))


def speed(bench: Bench) -> Iterator[str]:
    """Times steps of each size, with and without --compile."""
    sizes = SIZES | {"tiny": TINY}
    setups = (("tiny", 256),) if bench.small else SPEEDS
    # For a row of the log the CPU waits for the GPU, so rows are as rare as by default.
    steps = "--steps 8 --log-every 1" if bench.small else "--steps 80 --log-every 10"
    corpus = write_words(bench)
    yield header(
        "size", "parameters", "tokens on each side", "--compile", "tokens/s", "MFU", "peak, MiB"
    )
    failures = []
    for (name, tokens), compiled in product(setups, (False, True)):
        shape = sizes[name]
        flags = [*corpus, *plan.shape_flags(shape), "--batch-tokens", str(tokens)]
        flags += ["--benchmark", *steps.split(), *["--compile"] * compiled]
        parameters = TrainingStep(ModelConfig(**shape), 1, 1).parameters
        setup = (name, f"{parameters / 1e6:.1f} M", f"{tokens:,}", "yes" if compiled else "no")
        try:
            printed = bench.train("ddp", *flags)
        except RuntimeError as problem:
            failures.append(str(problem))
            yield row(*setup, "failed", "", "")
            continue
        found = read_benchmark(printed)
        yield row(*setup, f"{found.speed:,.0f}", found.mfu, f"{found.mib:,.0f}")
    if failures:
        raise RuntimeError("\n".join(failures))


def write_words(bench: Bench) -> list[str]:
    """Writes pairs of 8 to 50 words, 1.2 tokens each in a large vocabulary; returns flags."""
    generator = random.Random(0)
    words = ["".join(generator.choices(ascii_lowercase, k=4)) for _ in range(30_000)]
    corpus = bench.folder / "words"
    corpus.mkdir()
    for part, count in (("train", 300 if bench.small else 60_000), ("valid", 20)):
        lengths = [generator.randint(8, 50) for _ in range(count)]
        for side in ("de", "en"):
            lines = [" ".join(generator.choices(words, k=length)) + "\n" for length in lengths]
            (corpus / f"{part}.{side}").write_text("".join(lines))
    return ["--data", str(corpus)]


def decoding(bench: Bench) -> Iterator[str]:
    """Scores a translator on the GPU and on the CPU, greedy and with a beam."""
    # As many that loading the kernels, about a second, takes little of the time.
    steps, sentences = (20, 20) if bench.small else (600, 26_000)
    flags = f"--name decoding --steps {steps} --eval-every {steps} --bleu-sentences 0"
    flags += " --average-checkpoints 1"
    shape = [*plan.shape_flags(TINY), *SHORT] if bench.small else []
    bench.train("ddp", *flags.split(), *shape)
    pairs = list(phrasebook.pairs("train"))[:sentences]
    files = []
    for side, texts in zip(("de", "en"), zip(*pairs)):
        files.append(str(bench.folder / f"score.{side}"))
        Path(files[-1]).write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    yield f"{len(pairs):,} sentences of the phrasebook:\n"
    yield header("device", "precision", "beam", "BLEU", "sentences/s")
    setups = [("cpu", "fp32")]
    if bench.device == "cuda":
        setups = [("cuda", "bf16"), *setups]
    for (device, precision), beam in product(setups, ("1", "4")):
        command = [sys.executable, str(ROOT / "translate.py"), "--score", *files]
        command += ["--checkpoint", "logs/decoding", "--device", device]
        command += ["--precision", precision, "--beam", beam]
        printed = bench.run(command)
        bleu, rate = re.search(r"BLEU (\S+).*, ([\d,]+) sentences/s", printed, re.S).groups()
        yield row(device, precision, beam, bleu, rate)


def memory(bench: Bench) -> Iterator[str]:
    """Compares the peak memory of a step with the formula."""
    name, sentences = ("speed", 8) if bench.small else ("memory", 256)
    shape = plan.SHAPES[name]
    flags = [*plan.write_corpus(bench.folder), *plan.shape_flags(shape)]
    flags += ["--vocab-size", str(plan.VOCABULARY), "--max-length", str(plan.LENGTH)]
    flags += ["--batch-size", str(sentences), "--benchmark"]
    flags += ["--steps", "4", "--log-every", "1"]
    hardware = HARDWARE["h100"]  # or any GPU: of it only base_memory counts, which is 0
    if bench.device == "cpu":
        hardware = plan.base_hardware()
    config = ModelConfig(plan.VOCABULARY, **shape, max_length=plan.LENGTH)
    yield f"{sentences} pairs of {plan.LENGTH} tokens on each side in a step:\n"
    yield header("script", "precision", "predicted, MiB", "measured, MiB", "off by")
    cases = list(product(("ddp", "fsdp"), ("bf16", "fp32"), (False, True)))
    if bench.small:
        cases = [("ddp", "fp32", False)]
    runs = {}
    for mode, precision, recompute in cases:
        more = ("--precision", precision, *["--recompute"] * recompute)
        runs[mode, precision, recompute] = (mode, *flags, *more)
    printed = bench.train_all(runs)
    for mode, precision, recompute in cases:
        step = TrainingStep(config, sentences, plan.LENGTH, precision, recompute)
        step = replace(step, cpu=bench.device == "cpu")
        predicted = Estimate(step, hardware, mode, 1, 1, 1).peak_memory / MIB
        text = re.search(r"at most ([\d,]+) MiB", printed[mode, precision, recompute])[1]
        measured = float(text.replace(",", ""))
        script = f"`train_{mode}.py{' --recompute' * recompute}`"
        off_by = plan.off_by(predicted, measured)
        yield row(script, precision, f"{predicted:,.0f}", f"{measured:,.0f}", off_by)


def profile(bench: Bench) -> Iterator[str]:
    """Shows what the recorded steps call and which kernels take longest; keeps pictures."""
    shape, tokens = (TINY, 256) if bench.small else (SIZES["base"], 25_000)
    flags = [*write_words(bench), *plan.shape_flags(shape)]
    flags += ["--batch-tokens", str(tokens), "--bleu-sentences", "0"]
    flags += ["--name", "profile", "--profile", "--steps", "12"]
    bench.train("ddp", *flags)
    run = bench.folder / "logs" / "profile"
    with gzip.open(run / "trace-rank0.json.gz", "rt") as file:
        events = json.load(file)["traceEvents"]
    kinds = Counter(event["cat"] for event in events if "cat" in event)
    calls = Counter(event["name"] for event in events if event.get("cat") == "cuda_runtime")
    notes = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    steps = sum(name.startswith("step ") for name in notes)
    yield header(f"in {steps} steps", "number")
    for kind in ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset"):
        yield row(kind, str(kinds[kind]))
    for call, number in calls.most_common():
        yield row(f"`{call}`", str(number))
    yield from kernel_times(events)
    if bench.report:
        bench.report.mkdir(parents=True, exist_ok=True)
        for name in ("step.png", "memory.png"):
            shutil.copy(run / name, bench.report)
        yield "\n![a step](step.png)\n![its memory](memory.png)"


def kernel_times(events: list[dict[str, Any]]) -> Iterator[str]:
    """Yields how much of the time the GPU computes, and its kernels by their time.

    events: of a trace. Without a GPU it yields nothing.
    """
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if not kernels:
        return
    milliseconds: Counter[str] = Counter()
    for event in kernels:
        milliseconds[event["name"][:80]] += event["dur"] / 1000
    start = min(event["ts"] for event in kernels)
    end = max(event["ts"] + event["dur"] for event in kernels)
    busy = milliseconds.total() / (end - start) * 1000
    yield f"\nKernels run for {busy:.0%} of the {(end - start) / 1000:.1f} ms. The longest:\n"
    yield header("kernel", "ms", "share")
    for name, time in milliseconds.most_common(MOST_KERNELS):
        yield row(f"`{name}`", f"{time:.2f}", f"{time / milliseconds.total():.0%}")


SECTIONS: dict[str, Callable[[Bench], Iterator[str]]] = {
    "correctness": correctness,
    "resume": resume,
    "speed": speed,
    "decoding": decoding,
    "memory": memory,
    "profile": profile,
}


# --- The command line -------------------------------------------------------------------------


def run_section(name: str, bench: Bench) -> bool:
    """Prints a section, and returns whether it went well; --write keeps it in NAME.md."""
    lines: list[str] = []

    def add(line: str) -> None:
        print(line, flush=True)
        lines.append(line)
        if bench.report:  # a row at a time: a section that is cut off leaves what it has
            bench.report.mkdir(parents=True, exist_ok=True)
            text = "\n".join(lines).lstrip() + "\n"
            (bench.report / f"{name}.md").write_text(text, encoding="utf-8")

    add(f"\n## {name}\n")
    try:
        for line in SECTIONS[name](bench):
            add(line)
    except Exception as problem:  # whatever it is, the other sections are still to come
        add(f"\nerror: {problem}")
        return False
    return True


def main() -> None:
    parser = make_parser(__doc__, "")
    add = parser.add_argument
    add("--only", metavar="NAMES", default=",".join(SECTIONS), help="sections, with commas")
    add("--write", action="store_true", help="keep the tables in logs/reference/gpu/")
    add("--device", choices=("cuda", "cpu"), default="cuda")
    add("--small", action="store_true", help="tiny models and few steps")
    add(
        "--jobs",
        type=int,
        default=4,
        help="scripts that run at once in sections that time nothing",
    )
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := set(names) - set(SECTIONS):
        raise UserError(f"--only {args.only}: there is no {min(unknown)} in {list(SECTIONS)}")
    find_device(args.device)
    machine = device_name(args.device)
    report = None
    if args.write:
        slug = re.sub(r"\W+", "-", machine).strip("-").lower()
        report = ROOT / "logs" / "reference" / "gpu" / slug
    print(f"# {machine}, PyTorch {torch.__version__}", flush=True)
    failed = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(args.device, args.small, Path(folder), report, args.jobs)
            if not run_section(name, bench):
                failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
        sys.exit(1)


if __name__ == "__main__":
    run_main(main)
