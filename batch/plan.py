"""Estimates before a run starts: does the model fit, how long does it take, on how many GPUs?

    python batch/plan.py --hardware h100 --nodes 2 --data multi30k
    python batch/plan.py --hardware a100-40 --gpus-per-node 4 --layers 12 --d-model 1024 \\
        --heads 16 --d-ff 4096 --batch-tokens 262144 --total-tokens 1e10 --plot plan.png
    python batch/plan.py --hardware cpu --gpus-per-node 2 --measure

For DDP, FSDP, and FSDP within each node (--replicas) it prints the memory of the largest
process by part, the seconds of a step, tokens/s, MFU, hours, the fewest GPUs that hold the
model, and the best --accumulate; and for the fastest mode the lines of its SBATCH file. Every
sentence counts as --max-length tokens long. The assumptions are the numbers at the top of
support/planning/estimate.py and support/planning/footprint.py.
"""

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.common.errors import UserError, make_parser, run_main
from support.common.figures import load_matplotlib
from support.common.kernels import fast_precision
from support.common.text_table import aligned
from support.planning.estimate import (
    HARDWARE,
    MAX_GPUS,
    MODE_NAMES,
    Estimate,
    Hardware,
    best,
    fewest_gpus,
)
from support.planning.footprint import TrainingStep
from support.training.command_line import add_flag
from support.training.config_file import read_config
from support.training.settings import Settings, check_limits, defaults_of, flag, flags_of
from support.training.tasks import CONFIGS
from support.translation.task import model_config

# Flags of the training scripts that decide what a step costs.
SHARED = (
    "layers",
    "d_model",
    "heads",
    "d_ff",
    "dropout",
    "norm",
    "vocab_size",
    "max_length",
    "label_smoothing",
    "batch_tokens",
    "batch_size",
    "precision",
    "recompute",
    "delay_ms",
)
CORPORA = ("phrasebook", "multi30k")  # whose settings in configs/ can be planned


@dataclass
class PlanSettings:
    """Flags that this script alone has."""

    data: str = flag("", f"begin with the settings of {' or '.join(CORPORA)}, in configs/")
    accumulate: int = flag(0, "micro-batches of each process; 0: the best number", (0, 10_000))
    hardware: str = flag("h100", f"GPU, or the CPU: {', '.join(HARDWARE)}")
    nodes: int = flag(1, "number of nodes", (1, MAX_GPUS))
    gpus_per_node: int = flag(8, "GPUs, or processes of a CPU, on each node", (1, MAX_GPUS))
    memory_gb: float = flag(
        0.0, "memory of a GPU; 0 here and below: as known of --hardware", (0, 10**6)
    )
    tflops: float = flag(0.0, "peak TFLOP/s of a GPU in --precision", (0, 10**6))
    efficiency: float = flag(0.0, "share of --tflops that computing alone reaches", (0, 1))
    bandwidth_inside: float = flag(0.0, "GB/s, one way, between the GPUs of a node", (0, 10**6))
    bandwidth_between: float = flag(0.0, "GB/s, one way, of a node's network", (0, 10**6))
    total_tokens: float = flag(
        0.0, "source and target tokens of the whole run, for its hours", (0, 1e18)
    )
    measure: bool = flag(False, "with --hardware cpu: measure this machine's rates first")
    plot: str = flag("", "plot the estimate over 1 to 1,024 GPUs, to this PNG file")


def read_flags() -> argparse.Namespace:
    """Returns the flags, completed and checked; `given`: those of the command line.

    Raises UserError.
    """
    shared = flags_of(Settings)
    parser = make_parser(__doc__, "")
    defaults = defaults_of(PlanSettings)
    for name in SHARED:
        add_flag(parser, shared[name])
        defaults[name] = shared[name].default
    for field in flags_of(PlanSettings).values():
        add_flag(parser, field)
    given = vars(parser.parse_args())
    data = given.get("data", "")
    presets = {}
    if data:
        if data not in CORPORA:
            raise UserError(f"--data {data}: choose one of {', '.join(CORPORA)}")
        presets = read_config(str(CONFIGS / f"{data}.yaml"), Settings)
    flags = defaults | presets | given
    check_limits(Settings, flags | {"accumulate": max(1, flags["accumulate"])})
    check_limits(PlanSettings, flags)
    return argparse.Namespace(**flags, given=given)


def find_hardware(args: argparse.Namespace) -> Hardware:
    """Returns what --hardware names, with the figures of the command line. Raises UserError."""
    if args.hardware not in HARDWARE:
        raise UserError(f"--hardware {args.hardware}: choose one of {', '.join(HARDWARE)}")
    hardware = HARDWARE[args.hardware]
    gpus = args.nodes * args.gpus_per_node
    if gpus > MAX_GPUS:
        raise UserError(f"{gpus:,} GPUs are too many: choose at most {MAX_GPUS:,}")
    if args.measure and (not hardware.cpu or args.nodes > 1):
        raise UserError(
            "--measure works on this machine's CPU alone: pass --hardware cpu --nodes 1"
        )
    return replace(hardware, **given_figures(args))


def given_figures(args: argparse.Namespace) -> dict[str, float]:
    """Returns the fields of Hardware that the command line gives, in bytes, FLOP/s, bytes/s."""
    figures = {
        "memory": args.memory_gb * 1e9,
        "peak_flops": args.tflops * 1e12,
        "efficiency": args.efficiency,
        "node_bandwidth": args.bandwidth_inside * 1e9,
        "adapter_bandwidth": args.bandwidth_between * 1e9,
    }
    given = {name: value for name, value in figures.items() if value}
    if args.bandwidth_between:
        given["adapters"] = 1  # the bandwidth is that of the node
    return given


def choose_precision(args: argparse.Namespace, hardware: Hardware) -> str:
    """Returns "fp32" or "bf16". Raises UserError if the peak is not known in --precision."""
    if args.precision == "auto":
        return fast_precision("cpu") if args.measure else hardware.precision
    if args.precision != hardware.precision and not args.tflops and not args.measure:
        raise UserError(
            f"--precision {args.precision}: the peak of {args.hardware} is known only in "
            f"{hardware.precision}; pass --tflops"
        )
    return args.precision


def find_modes(args: argparse.Namespace, hardware: Hardware) -> list[str]:
    """Returns the modes that can run on so many nodes."""
    modes = ["ddp", "fsdp"]
    if args.nodes > 1:
        modes.append("hsdp")
    elif hardware.cpu:
        modes.insert(0, "cpu")
    return modes


def short(number: float) -> str:
    """Returns three digits of a number, or all digits before its point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def column(estimate: Estimate, fewest: int, total_tokens: float) -> dict[str, str]:
    """Returns the cells of one mode by the titles of their rows.

    fewest: GPUs that hold the model. total_tokens: of the whole run; 0: unknown.
    """
    cells = {"": MODE_NAMES[estimate.mode], "memory of the largest process, GB": ""}
    for part, size in estimate.memory.items():
        cells[f"  {part}"] = short(size / 1e9)
    limit = short(estimate.hardware.usable_memory / 1e9)
    cells["  the most at one time"] = short(estimate.peak_memory / 1e9)
    cells[f"  fits in {limit}"] = "yes" if estimate.fits else "no"
    cells["fewest GPUs that hold it"] = str(fewest) if fewest else "none"
    cells["--accumulate"] = str(estimate.accumulate)
    tokens = estimate.step.tokens
    times = {
        "seconds of a step": short(estimate.seconds),
        "  computing": short(estimate.computing),
        "  exchange that is not hidden": short(estimate.exchange),
        "tokens/s": short(tokens / estimate.seconds),
        "MFU": f"{estimate.mfu:.1%}",
    }
    if total_tokens:
        hours = total_tokens / 3600 * estimate.seconds / tokens
        times[f"hours for {total_tokens:.3g} tokens"] = short(hours)
        times["GPU hours"] = short(hours * estimate.gpus)
    if not estimate.fits:
        times = dict.fromkeys(times, "-")
    return cells | times


def table(columns: list[dict[str, str]]) -> str:
    """Returns the columns side by side, after the titles of their rows."""
    rows = [[title, *(cells[title] for cells in columns)] for title in columns[0]]
    return "\n".join(aligned(rows))


def training_flags(estimate: Estimate, args: argparse.Namespace) -> list[str]:
    """Returns the flags of the training script for this estimate."""
    flags = []
    if "data" not in args.given:  # a built-in corpus has its own presets
        flags.append("--data CORPUS")
    for name, value in args.given.items():
        is_training_flag = name == "data" or name in SHARED
        chosen_below = name in ("accumulate", "delay_ms")
        if not is_training_flag or chosen_below or value is False:
            continue
        flag = f"--{name.replace('_', '-')}"
        flags.append(flag if value is True else f"{flag} {value}")
    if estimate.accumulate > 1:
        flags.append(f"--accumulate {estimate.accumulate}")
    if estimate.mode == "hsdp":
        flags.append(f"--replicas {estimate.nodes}")
    if args.total_tokens:
        flags.append(f"--steps {math.ceil(args.total_tokens / estimate.step.tokens)}")
    return flags


def torchrun_command(estimate: Estimate, flags: list[str]) -> str:
    """Returns the command for nodes without GPUs, for which there is no SBATCH file."""
    rendezvous = "--standalone"
    if estimate.nodes > 1:
        rendezvous = f"--nnodes {estimate.nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    script = "train_fsdp.py" if estimate.shards else "train_ddp.py"
    return (
        f"torchrun {rendezvous} --nproc-per-node {estimate.per_node} "
        f"{script} --device cpu {' '.join(flags)}"
    )


def sbatch_file(estimate: Estimate) -> str:
    """Returns the name of the SBATCH file that is nearest to the estimate."""
    if estimate.mode == "cpu":
        return "cpu.sbatch"
    if estimate.shards:
        return "fsdp.sbatch"
    return "2node.sbatch" if estimate.nodes > 1 else "4gpu.sbatch"


def sbatch_command(estimate: Estimate, flags: list[str], total_tokens: float) -> str:
    """Returns the lines of the SBATCH file that change, and the command that submits it."""
    file = sbatch_file(estimate)
    lines = [
        f"In batch/{file}:",
        f"#SBATCH --nodes={estimate.nodes}",
        "#SBATCH --ntasks-per-node=1",
    ]
    if estimate.mode == "cpu":
        lines.append(f"#SBATCH --cpus-per-task={estimate.per_node}")
        flags = [*flags, f"--procs {estimate.per_node}"]
    else:
        lines.append(f"#SBATCH --gpus-per-node={estimate.per_node}")
        # For each GPU a core to compute and one to read data.
        lines.append(f"#SBATCH --cpus-per-task={2 * estimate.per_node}")
    if total_tokens:  # with a tenth to spare; the job requeues itself
        hours = 1.1 * total_tokens * estimate.seconds / estimate.step.tokens / 3600
        lines.append(f"#SBATCH --time={min(24, math.ceil(hours))}:00:00")
    lines.append(f"sbatch batch/{file} {' '.join(flags)}")
    return "\n".join(lines)


def command(estimate: Estimate, args: argparse.Namespace) -> str:
    """Returns how to start a run like the estimate."""
    flags = training_flags(estimate, args)
    if estimate.hardware.cpu and estimate.mode != "cpu":
        return torchrun_command(estimate, flags)
    return sbatch_command(estimate, flags, args.total_tokens)


def does_not_fit(size: str, fewest: dict[str, int], args: argparse.Namespace) -> str:
    """Returns the message for a model that fits in no mode: how many GPUs would hold it."""
    fitting = [f"{MODE_NAMES[mode]} fits on {gpus}" for mode, gpus in fewest.items() if gpus]
    advice = ", ".join(fitting) or f"nor on any number up to {MAX_GPUS:,}"
    gpus = args.nodes * args.gpus_per_node
    return f"{size} do not fit on {gpus} x {args.hardware}; {advice}"


def plot(
    step: TrainingStep, hardware: Hardware, modes: list[str], args: argparse.Namespace
) -> None:
    """Writes --plot. Raises UserError if matplotlib is not installed."""
    load_matplotlib("--plot")
    from support.planning.plan_plot import plot_estimates

    path = Path(args.plot)
    accumulate = args.given.get("accumulate", 0)
    plot_estimates(step, hardware, modes, args.gpus_per_node, path, accumulate)
    print(f"\n{path}")


def main() -> None:
    args = read_flags()
    hardware = find_hardware(args)
    precision = choose_precision(args, hardware)
    step = TrainingStep(
        config=model_config(args, args.vocab_size),
        sentences=args.batch_size or max(1, args.batch_tokens // args.max_length),
        length=args.max_length,
        precision=precision,
        recompute=args.recompute,
        delay=args.delay_ms / 1000,
        cpu=hardware.cpu,
    )
    if args.measure:
        from support.planning.measure import measure

        hardware = replace(measure(step, args.gpus_per_node), **given_figures(args))

    accumulate = args.given.get("accumulate", 0)  # 0: the best
    modes = find_modes(args, hardware)
    estimates = {}
    fewest = {}
    for mode in modes:
        estimates[mode] = best(step, hardware, mode, args.nodes, args.gpus_per_node, accumulate)
        fewest[mode] = fewest_gpus(step, hardware, mode, args.gpus_per_node, accumulate)
    fitting = [estimate for estimate in estimates.values() if estimate.fits]
    size = f"{short(step.parameters / 1e6)} M parameters"
    if not fitting:
        raise UserError(does_not_fit(size, fewest, args))
    print(
        f"{size}; a step: {step.sentences:,} pairs of {step.length} tokens a side; "
        f"{args.nodes} x {args.gpus_per_node} {args.hardware}, {precision}\n"
    )
    print(table([column(estimates[mode], fewest[mode], args.total_tokens) for mode in modes]))
    fastest = min(fitting, key=lambda estimate: estimate.seconds)
    name = MODE_NAMES[fastest.mode]
    print(f"\nThe fastest that fits is {name}. {command(fastest, args)}")
    if args.plot:
        plot(step, hardware, modes, args)


if __name__ == "__main__":
    run_main(main)
