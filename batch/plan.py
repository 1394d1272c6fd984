"""Estimates before a run starts: does the model fit, how long does it take, on how many GPUs?

    python batch/plan.py --hardware h100 --nodes 2 --data multi30k
    python batch/plan.py --hardware a100-40 --gpus-per-node 4 --layers 12 --d-model 1024 \\
        --heads 16 --d-ff 4096 --batch-tokens 262144 --total-tokens 1e10 --plot plan.png
    python batch/plan.py --hardware cpu --gpus-per-node 2 --measure

For DDP, FSDP, FSDP within each node (--replicas), and tensor parallelism within each node with
FSDP across, it prints the memory of the largest process by part, the seconds of a step,
tokens/s, MFU, hours, the fewest GPUs that hold the model, and the best --accumulate; and for
the fastest of these the lines of its SBATCH file or, on CPUs, the command. Every sentence
counts as --max-length tokens long. The assumptions are the numbers at the top of the files of
support/planning/, above all of machines.py.
"""

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from model import ModelConfig
from support.common.errors import UserError, make_parser, run_main
from support.common.hardware import fast_precision
from support.common.shape import make_config
from support.common.text_table import aligned
from support.corpora.task_type import TRANSLATION_CORPORA
from support.planning.estimate import MAX_GPUS, MODE_NAMES, Estimate, best, can_run, fewest_gpus
from support.planning.footprint import TrainingStep
from support.planning.machines import HARDWARE, Hardware
from support.training.command_line import add_flag
from support.training.config_file import CONFIGS, read_config
from support.training.settings import Settings, check_limits, flag, flags_of, option

# Flags of the training scripts that decide what a step costs.
SHAPE = ("layers", "d_model", "heads", "d_ff", "dropout", "norm", "vocab_size", "max_length")
STEP = ("label_smoothing", "batch_tokens", "batch_size", "precision", "recompute", "delay_ms")
SHARED = SHAPE + STEP
POSITIVE = (0.001, 10**6)  # limits of what is given; 0 stands for what is not


@dataclass
class PlanSettings:
    """The flags that only this script has."""

    data: str = flag(
        "", "begin with this corpus's settings, in configs/", choices=TRANSLATION_CORPORA
    )
    accumulate: int = flag(0, "micro-batches of each process; 0: the best number", (0, 10_000))
    hardware: str = flag("h100", "GPU, or the CPU", choices=tuple(HARDWARE))
    nodes: int = flag(1, "number of nodes", (1, MAX_GPUS))
    gpus_per_node: int = flag(8, "GPUs, or processes of a CPU, on each node", (1, MAX_GPUS))
    memory_gb: float = flag(
        0.0, "memory of a GPU; without it, or one of those below: --hardware's", POSITIVE
    )
    tflops: float = flag(0.0, "peak TFLOP/s of a GPU in --precision", POSITIVE)
    efficiency: float = flag(0.0, "share of --tflops that computing alone reaches", (0.001, 1))
    bandwidth_inside: float = flag(0.0, "GB/s, one way, between the GPUs of a node", POSITIVE)
    bandwidth_between: float = flag(0.0, "GB/s, one way, of a node's network", POSITIVE)
    total_tokens: float = flag(
        0.0, "source and target tokens of the whole run, with padding, for its hours", (1, 1e18)
    )
    measure: bool = flag(False, "with --hardware cpu: measure this machine's rates first")
    plot: str = flag("", "plot the estimate over 1 to 1,024 GPUs, to this PNG file")


def read_flags() -> argparse.Namespace:
    """Returns the flags, with defaults and checked. Raises UserError.

    Their attribute `given` has only those of the command line.
    """
    parser = make_parser(__doc__)
    all_shared = flags_of(Settings)
    fields = {name: all_shared[name] for name in SHARED} | flags_of(PlanSettings)
    for field in fields.values():
        add_flag(parser, field)
    given = vars(parser.parse_args())
    flags = {name: field.default for name, field in fields.items()}
    if "data" in given:
        presets = read_config(str(CONFIGS / f"{given['data']}.yaml"), Settings)
        flags |= {name: value for name, value in presets.items() if name in SHARED}
    flags |= given
    check_limits(Settings, {name: flags[name] for name in SHARED})
    check_limits(PlanSettings, given)
    gpus = flags["nodes"] * flags["gpus_per_node"]
    if gpus > MAX_GPUS:
        raise UserError(f"{gpus:,} GPUs are too many: choose at most {MAX_GPUS:,}")
    if flags["measure"] and (flags["hardware"] != "cpu" or flags["nodes"] > 1):
        raise UserError(
            "--measure works on this machine's CPU alone: pass --hardware cpu --nodes 1"
        )
    return argparse.Namespace(**flags, given=given)


def with_given_figures(hardware: Hardware, args: argparse.Namespace) -> Hardware:
    """Returns the hardware with the command line's figures in place of its own."""
    figures = {
        "memory": args.memory_gb * 1e9,
        "peak_flops": args.tflops * 1e12,
        "efficiency": args.efficiency,
        "node_bandwidth": args.bandwidth_inside * 1e9,
        "adapter_bandwidth": args.bandwidth_between * 1e9,
        "adapters": 1 if args.bandwidth_between else 0,  # the bandwidth is that of the node
    }
    return replace(hardware, **{name: value for name, value in figures.items() if value})


def choose_precision(args: argparse.Namespace) -> str:
    """Returns the step's precision. Raises UserError if its peak is not known."""
    known = HARDWARE[args.hardware].precision
    if args.precision == "tf32" and args.hardware == "cpu":
        raise UserError("--precision tf32: only GPUs have it; use fp32")
    if args.precision == "auto":
        return fast_precision("cpu") if args.measure else known
    precisions = [known]
    if known == "bf16" and args.hardware != "cpu":
        precisions.append("fp16")  # as fast: see PEAKS in support/common/hardware.py
    if args.precision not in precisions and not args.tflops and not args.measure:
        raise UserError(
            f"--precision {args.precision}: the peak of {args.hardware} is known only in "
            f"{' and '.join(precisions)}; pass --tflops"
        )
    return args.precision


def find_modes(args: argparse.Namespace, step: TrainingStep) -> list[str]:
    """Returns the modes that can run on these nodes."""
    gpus = args.gpus_per_node
    has_tp = step.precision != "fp16"  # train_tp.py cannot scale the loss
    modes = {
        "cpu": args.nodes == 1 and args.hardware == "cpu",
        "ddp": True,
        "fsdp": True,
        "hsdp": args.nodes > 1,
        "tp": has_tp and gpus > 1 and can_run(step, "tp", args.nodes, gpus),
    }
    return [mode for mode, is_possible in modes.items() if is_possible]


def short(number: float) -> str:
    """Returns a number with three significant digits or, from 100 on, as an integer."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def column(estimate: Estimate, fewest: int, total_tokens: float) -> dict[str, str]:
    """Returns the cells of one mode, by the titles of their rows.

    fewest: the fewest GPUs that hold the model; 0: none do. total_tokens: of the whole run; 0:
    unknown.
    """
    cells = {"": MODE_NAMES[estimate.mode], "memory of the largest process, GB": ""}
    for part, size in estimate.memory.items():
        cells[f"  {part}"] = short(size / 1e9)
    limit = short(estimate.hardware.usable_memory / 1e9)
    cells["  the most at one time"] = short(estimate.peak_memory / 1e9)
    cells[f"  fits in {limit}"] = "yes" if estimate.fits else "no"
    unit, units = ("process", "processes") if estimate.hardware.cpu else ("GPU", "GPUs")
    cells[f"fewest {units} that hold it"] = str(fewest) if fewest else "none"
    cells["--accumulate"] = str(estimate.accumulate)
    tokens = estimate.step.tokens
    times = {
        "seconds of a step": short(estimate.seconds),
        "  computing": short(estimate.computing),
        "  exposed communication": short(estimate.communication),
        "tokens/s": short(tokens / estimate.seconds),
        "MFU": f"{estimate.mfu:.1%}",
    }
    if total_tokens:
        hours = run_hours(estimate, total_tokens)
        times[f"hours for {total_tokens:.3g} tokens"] = short(hours)
        times[f"{unit} hours"] = short(hours * estimate.gpus)
    if not estimate.fits:
        times = dict.fromkeys(times, "-")
    return cells | times


def run_hours(estimate: Estimate, total_tokens: float) -> float:
    """Returns the hours that a run of so many tokens takes."""
    return total_tokens / estimate.step.tokens * estimate.seconds / 3600


def training_flags(estimate: Estimate, args: argparse.Namespace) -> str:
    """Returns the flags of the training script for this estimate."""
    flags = [f"--data {args.data or 'CORPUS'}"]
    # Always the size of a step: on GPUs a run may enlarge its default.
    names = {*args.given, "batch_size", "batch_tokens"}
    if not args.data:  # what the files in configs/ set depends on the size of CORPUS
        for path in CONFIGS.glob("pairs*.yaml"):
            names |= set(read_config(str(path), Settings))
    # --batch-size takes the place of --batch-tokens. The run has the delay of a real network.
    names -= {"batch_tokens" if args.batch_size else "batch_size", "delay_ms"}
    for name in SHARED:
        value = getattr(args, name)
        if name in names and value is not False:
            flags.append(option(name) if value is True else f"{option(name)} {value}")
    if estimate.accumulate > 1:
        flags.append(f"--accumulate {estimate.accumulate}")
    if estimate.mode == "hsdp":
        flags.append(f"--replicas {estimate.nodes}")
    if args.total_tokens:
        flags.append(f"--steps {math.ceil(args.total_tokens / estimate.step.tokens)}")
    return " ".join(flags)


def command(estimate: Estimate, args: argparse.Namespace) -> str:
    """Returns the lines that start a run like the estimate."""
    flags = training_flags(estimate, args)
    if not estimate.hardware.cpu or estimate.mode == "cpu":
        return sbatch_command(estimate, flags, args.total_tokens)
    # For nodes without GPUs there is no SBATCH file.
    rendezvous = "--standalone"
    if estimate.nodes > 1:
        rendezvous = f"--nnodes {estimate.nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    n = estimate.per_node
    script = "train_fsdp.py" if estimate.mode == "hsdp" else f"train_{estimate.mode}.py"
    return f"torchrun {rendezvous} --nproc-per-node {n} {script} --device cpu {flags}"


def sbatch_command(estimate: Estimate, flags: str, total_tokens: float) -> str:
    """Returns the lines of the SBATCH file that change, and the command that submits it."""
    n = estimate.per_node
    # For each GPU a core to compute and one to read data.
    resources = [f"#SBATCH --gpus-per-node={n}", f"#SBATCH --cpus-per-task={2 * n}"]
    if estimate.mode == "cpu":
        file = "cpu.sbatch"
        resources = [f"#SBATCH --cpus-per-task={n}"]
        flags += f" --procs {n}"
    elif estimate.mode == "tp":
        file = "tp.sbatch"
    elif estimate.shards:
        file = "fsdp.sbatch"
    else:
        file = "2node.sbatch" if estimate.nodes > 1 else "4gpu.sbatch"
    if total_tokens:  # with a tenth to spare; the job requeues itself
        hours = math.ceil(1.1 * run_hours(estimate, total_tokens))
        resources.append(f"#SBATCH --time={min(24, hours)}:00:00")
    nodes = [f"#SBATCH --nodes={estimate.nodes}", "#SBATCH --ntasks-per-node=1"]
    return "\n".join([f"In batch/{file}:", *nodes, *resources, f"sbatch batch/{file} {flags}"])


def training_step(args: argparse.Namespace) -> TrainingStep:
    """Returns the step that the flags describe. Raises UserError."""
    return TrainingStep(
        config=make_config(ModelConfig, args, vocab_size=args.vocab_size),
        sentences=args.batch_size or max(1, args.batch_tokens // args.max_length),
        length=args.max_length,
        precision=choose_precision(args),
        recompute=args.recompute,
        delay=args.delay_ms / 1000,
        cpu=HARDWARE[args.hardware].cpu,
        accumulate=args.accumulate,
    )


def main() -> None:
    args = read_flags()
    step = training_step(args)
    hardware = HARDWARE[args.hardware]
    if args.measure:
        from support.planning.measure import measure

        hardware = measure(step, args.gpus_per_node)
    hardware = with_given_figures(hardware, args)
    modes = find_modes(args, step)
    layout = (args.nodes, args.gpus_per_node)
    estimates = [best(step, hardware, mode, *layout) for mode in modes]
    fewest = [fewest_gpus(step, hardware, mode, args.gpus_per_node) for mode in modes]
    fitting = [estimate for estimate in estimates if estimate.fits]
    size = f"{short(step.parameters / 1e6)} M parameters"
    machines = f"{args.nodes} x {args.gpus_per_node} {args.hardware}"
    if not fitting:
        holding = [f"{MODE_NAMES[mode]} fits on {n}" for mode, n in zip(modes, fewest) if n]
        advice = ", ".join(holding) or f"nor on any number up to {MAX_GPUS:,}"
        raise UserError(f"{size} do not fit on {machines}; {advice}")
    pairs = f"{step.sentences:,} pairs of {step.length} tokens on each side"
    print(f"{size}; a step: {pairs}; {machines}, {step.precision}\n")
    columns = [column(*each, args.total_tokens) for each in zip(estimates, fewest)]
    rows = [[title, *(cells[title] for cells in columns)] for title in columns[0]]
    print(*aligned(rows), sep="\n")
    fastest = min(fitting, key=lambda estimate: estimate.seconds)
    print(f"\nThe fastest that fits is {MODE_NAMES[fastest.mode]}. {command(fastest, args)}")
    if args.plot:
        from support.planning.plan_plot import plot_estimates

        plot_estimates(step, hardware, modes, args.gpus_per_node, Path(args.plot))
        print(f"\n{args.plot}")


if __name__ == "__main__":
    run_main(main)
