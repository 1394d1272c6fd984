"""Plans a run before it starts: does it fit, how long does it take, on how many GPUs?

    python batch/plan.py --kind h100 --nodes 2 --data multi30k
    python batch/plan.py --kind a100-40 --gpus-per-node 4 --layers 12 --d-model 1024 --heads 16 \\
        --d-ff 4096 --batch-tokens 262144 --total-tokens 1e10 --picture plan.png
    python batch/plan.py --kind cpu --gpus-per-node 2 --measure

For DDP, FSDP, and FSDP within each node (--replicas): the memory of the largest process by part,
seconds of a step, tokens/s, MFU, hours, the fewest GPUs that hold the model, the best --accumulate;
and for the fastest the lines of its SBATCH file. Every sentence counts as --max-length tokens long.
Assumptions are the numbers at the top of support/planning/estimate.py and support/planning/footprint.py.
"""

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.common.errors import UserError, make_parser, run_main
from support.common.kernels import fast_precision
from support.corpora.tables import aligned
from support.planning.estimate import KINDS, MODES, MOST, Kind, Plan, best, smallest
from support.planning.footprint import Job
from support.training.flags import BOUNDS, FLAGS, add_flag, check_bounds
from support.translation.task import PRESETS, model_config

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
    "accumulate",
    "precision",
    "recompute",
    "delay_ms",
)
OWN = [
    ("--data", str, "", f"begin with the flags that are best for {' or '.join(PRESETS)}"),
    ("--kind", str, "h100", f"of GPU or CPU: {', '.join(KINDS)}"),
    ("--nodes", int, 1, "machines"),
    ("--gpus-per-node", int, 8, "GPUs, or processes of a CPU, on each"),
    ("--memory-gb", float, 0.0, "of a GPU; this and the next four replace its kind's figures"),
    ("--tflops", float, 0.0, "peak of a GPU in --precision"),
    ("--efficiency", float, 0.0, "share of --tflops that computing alone reaches"),
    ("--bandwidth-inside", float, 0.0, "GB/s, one way, between the GPUs of a node"),
    ("--bandwidth-between", float, 0.0, "GB/s, one way, of a node's network"),
    ("--total-tokens", float, 0.0, "source and target tokens of the whole run, for its hours"),
    ("--measure", bool, False, "with --kind cpu: find out this machine's rates first"),
    ("--picture", str, "", "draw it over 1 to 1,024 GPUs, to this file"),
]
LIMITS = {
    "nodes": (1, MOST),
    "gpus_per_node": (1, MOST),
    "memory_gb": (0, 10**6),
    "tflops": (0, 10**6),
    "efficiency": (0, 1),
    "bandwidth_inside": (0, 10**6),
    "bandwidth_between": (0, 10**6),
    "total_tokens": (0, 1e18),
}
NAMES = {"cpu": "train_cpu.py", "ddp": "DDP", "fsdp": "FSDP", "mesh": "FSDP --replicas"}


def read_flags() -> argparse.Namespace:
    """The command line, completed and checked. Raises UserError."""
    every = {flag[0][2:].replace("-", "_"): flag for flags in FLAGS.values() for flag in flags}
    parser, defaults = make_parser(__doc__, ""), {}
    for flag, kind, default, text in [every[name] for name in SHARED] + OWN:
        shown = "the best" if flag == "--accumulate" else default or ""
        defaults[add_flag(parser, flag, kind, shown, text)] = default
    given = vars(parser.parse_args())
    presets = PRESETS.get(data := given.get("data", ""), {})
    if data and not presets:
        raise UserError(f"--data {data}: known are {', '.join(PRESETS)}")
    args = argparse.Namespace(**defaults | presets | given, given=given)
    check_bounds(args, BOUNDS | LIMITS)
    if args.nodes * args.gpus_per_node > MOST:
        raise UserError(f"{args.nodes * args.gpus_per_node:,} GPUs: at most {MOST:,}")
    return args


def find_kind(args: argparse.Namespace) -> Kind:
    """The kind of GPU, with the figures that were given in the place of its own."""
    if args.kind not in KINDS:
        raise UserError(f"--kind {args.kind}: known are {', '.join(KINDS)}")
    kind = KINDS[args.kind]
    if args.precision == "auto":
        args.precision = kind.precision
        if args.measure:
            args.precision = fast_precision("cpu")
    elif args.precision != kind.precision and not args.tflops and not args.measure:
        raise UserError(
            f"--precision {args.precision}: --tflops has to give {args.kind}'s peak"
        )
    return replace(kind, **given_figures(args))


def given_figures(args: argparse.Namespace) -> dict[str, float]:
    """The fields of a Kind that the command line gives, in bytes, FLOP/s and bytes/s."""
    given = {
        "memory": args.memory_gb * 1e9,
        "rate": args.tflops * 1e12,
        "efficiency": args.efficiency,
        "inside": args.bandwidth_inside * 1e9,
        "adapter": args.bandwidth_between * 1e9,
        "adapters": bool(args.bandwidth_between),
    }
    return {name: value for name, value in given.items() if value}


def short(number: float) -> str:
    """Three digits of a number, or all before its point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def table(plans: dict[str, Plan], fewest: dict[str, int], args: argparse.Namespace) -> str:
    """What each mode comes to, a column for each."""
    every = list(plans.values())
    limit = every[0].kind.usable / 1e9

    def row(title: str, figure, needs_room: bool = True) -> list[str]:
        return [
            title,
            *(figure(plan) if plan.fits or not needs_room else "-" for plan in every),
        ]

    rows = [["", *(NAMES[mode] for mode in plans)], ["memory of the largest process, GB"]]
    rows += [
        row(f"  {part}", lambda plan: short(plan.memory[part] / 1e9), False)
        for part in every[0].memory
    ]
    rows += [
        row("  the most at one time", lambda plan: short(plan.most / 1e9), False),
        row(f"  fits in {short(limit)}", lambda plan: "yes" if plan.fits else "no", False),
        ["fewest GPUs that hold it", *(f"{fewest[mode] or 'none'}" for mode in plans)],
        row("--accumulate", lambda plan: str(plan.accumulate), False),
        row("seconds of a step", lambda plan: short(plan.seconds)),
        row("  computing", lambda plan: short(plan.computing)),
        row("  exchange that is not hidden", lambda plan: short(plan.exchange)),
        row("tokens/s", lambda plan: short(plan.job.tokens / plan.seconds)),
        row("MFU", lambda plan: f"{plan.mfu:.1%}"),
    ]
    if args.total_tokens:
        hours = args.total_tokens / 3600
        rows += [
            row(
                f"hours for {args.total_tokens:.3g} tokens",
                lambda plan: short(hours * plan.seconds / plan.job.tokens),
            ),
            row(
                "GPU hours",
                lambda plan: short(hours * plan.gpus * plan.seconds / plan.job.tokens),
            ),
        ]
    return "\n".join(aligned(rows))


def command(plan: Plan, args: argparse.Namespace) -> str:
    """How to start the chosen plan: the lines of its SBATCH file that change, or a command."""
    flags = [
        f"--{name.replace('_', '-')} {value}" if value is not True else f"--{name}"
        for name, value in args.given.items()
        if value is not False
        if name in SHARED and name not in ("accumulate", "delay_ms") or name == "data"
    ]
    flags[:0] = ["--data CORPUS"] * ("data" not in args.given)  # built-in ones have presets
    flags += [f"--accumulate {plan.accumulate}"] * (plan.accumulate > 1)
    flags += [f"--replicas {plan.nodes}"] * (plan.mode == "mesh")
    if args.total_tokens:
        flags.append(f"--steps {math.ceil(args.total_tokens / plan.job.tokens)}")
    flags = " ".join(flags)
    if plan.kind.cpu and plan.mode != "cpu":
        meet = (
            "--standalone"
            if plan.nodes == 1
            else (f"--nnodes {plan.nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500")
        )
        return (
            f"torchrun {meet} --nproc-per-node {plan.per_node} "
            f"train_{plan.mode.replace('mesh', 'fsdp')}.py --device cpu {flags}"
        )
    file = "cpu" if plan.mode == "cpu" else "fsdp" if plan.shards else "4gpu"
    file = "2node" if file == "4gpu" and plan.nodes > 1 else file
    lines = [
        f"In batch/{file}.sbatch:",
        f"#SBATCH --nodes={plan.nodes}",
        "#SBATCH --ntasks-per-node=1",
    ]
    if plan.mode == "cpu":
        lines.append(f"#SBATCH --cpus-per-task={plan.per_node}")
        flags += f" --procs {plan.per_node}"
    else:  # a core to compute, one to read data
        lines += [
            f"#SBATCH --gpus-per-node={plan.per_node}",
            f"#SBATCH --cpus-per-task={2 * plan.per_node}",
        ]
    if args.total_tokens:  # a tenth more; the job requeues itself
        hours = 1.1 * args.total_tokens * plan.seconds / plan.job.tokens / 3600
        lines.append(f"#SBATCH --time={min(24, math.ceil(hours))}:00:00")
    return "\n".join([*lines, f"sbatch batch/{file}.sbatch {flags}"])


def main() -> None:
    args = read_flags()
    kind = find_kind(args)
    sentences = args.batch_size or max(1, args.batch_tokens // args.max_length)
    job = Job(
        model_config(args, args.vocab_size),
        sentences,
        args.max_length,
        args.precision,
        args.recompute,
        args.delay_ms / 1000,
        kind.cpu,
    )
    if args.measure:
        if not kind.cpu or args.nodes > 1:
            raise UserError("--measure is of this machine's CPU: --kind cpu --nodes 1")
        from support.planning.measure import measure

        kind = replace(measure(job, args.gpus_per_node), **given_figures(args))
    modes = ("cpu",) * (kind.cpu and args.nodes == 1) + MODES[: 3 if args.nodes > 1 else 2]
    parts = args.given.get("accumulate", 0)
    plans = {
        mode: best(job, kind, mode, args.nodes, args.gpus_per_node, parts) for mode in modes
    }
    fewest = {mode: smallest(job, kind, mode, args.gpus_per_node, parts) for mode in modes}
    number, fitting = args.nodes * args.gpus_per_node, [p for p in plans.values() if p.fits]
    size = f"{short(job.parameters / 1e6)} M parameters"
    if not fitting:
        enough = [f"{NAMES[mode]} fits on {found}" for mode, found in fewest.items() if found]
        raise UserError(
            f"{size} do not fit on {number} x {args.kind}; "
            f"{', '.join(enough) or f'nor on any number up to {MOST:,}'}"
        )
    print(
        f"{size}; a step: {sentences:,} pairs of {args.max_length} tokens a side; "
        f"{args.nodes} x {args.gpus_per_node} {args.kind}, {args.precision}\n"
    )
    print(table(plans, fewest, args))
    fastest = min(fitting, key=lambda plan: plan.seconds)
    print(f"\nThe fastest that fits is {NAMES[fastest.mode]}. {command(fastest, args)}")
    if args.picture:
        try:
            from support.planning.plan_picture import draw
        except ImportError:
            raise UserError("--picture draws with matplotlib: pip install matplotlib") from None
        draw(job, kind, modes, args.gpus_per_node, Path(args.picture), parts)
        print(f"\n{args.picture}")


if __name__ == "__main__":
    run_main(main)
