"""The picture of a plan: what each mode needs and reaches on 1 to 1,024 GPUs."""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from support.common.palette import BLUE, GREEN, ORANGE, VERMILLION
from support.planning.estimate import MOST, Job, Kind, best

# The colours are for the screen, the markers for print.
STYLES = {
    "cpu": (ORANGE, "D", "train_cpu.py"),
    "ddp": (BLUE, "o", "DDP"),
    "fsdp": (VERMILLION, "s", "FSDP"),
    "mesh": (GREEN, "^", "FSDP --replicas"),
}
STYLE = {
    "font.size": 8,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
}


def numbers(per_node: int) -> list[tuple[int, int]]:
    """(nodes, GPUs on each) of 1, 2, 4 … GPUs, of whole nodes where they are more than one."""
    inside = [(1, 2**i) for i in range(per_node.bit_length()) if 2**i < per_node]
    doubled = [(2**i, per_node) for i in range(MOST.bit_length()) if 2**i * per_node <= MOST]
    return inside + doubled


def draw(
    job: Job, kind: Kind, modes: tuple[str, ...], per_node: int, path: Path, accumulate: int = 0
) -> None:
    """Writes the picture: memory, speed, MFU, and what of a step is exchange that is not hidden.

    Where a mode does not fit, it has a point in the panel of memory alone.
    """
    matplotlib.rcParams.update(STYLE)
    figure = Figure((7, 5.2), dpi=200, layout="constrained")
    grid = figure.subplots(2, 2, sharex=True)
    for mode in modes:
        color, marker, label = STYLES[mode]
        plans = [best(job, kind, mode, *where, accumulate) for where in numbers(per_node)]
        fitting = [plan for plan in plans if plan.fits]
        gpus = [plan.gpus for plan in fitting]
        for axes, xs, ys in (
            (grid[0, 0], [plan.gpus for plan in plans], [plan.most / 1e9 for plan in plans]),
            (grid[0, 1], gpus, [job.tokens / plan.seconds for plan in fitting]),
            (grid[1, 0], gpus, [100 * plan.mfu for plan in fitting]),
            (grid[1, 1], gpus, [100 * plan.exchange / plan.seconds for plan in fitting]),
        ):
            axes.plot(xs, ys, color=color, marker=marker, label=label)
    grid[0, 0].axhline(
        kind.usable / 1e9, color="black", linestyle=(0, (4, 2)), label="what a GPU can hold"
    )
    titles = (
        "memory of the largest process (GB)",
        "tokens/s",
        "MFU (%)",
        "exchange that is not hidden (% of a step)",
    )
    for axes, title in zip(grid.flat, titles):
        axes.set_title(title, loc="left", fontsize=8)
        axes.set_xscale("log", base=2)
    for axes, form in zip(grid[0], ("{x:,g}", "{x:,.0f}")):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter(form))
        axes.yaxis.set_minor_locator(NullLocator())
    for axes in grid[1]:
        axes.set(xlabel="processes" if kind.cpu else "GPUs", ylim=(0, None))
        axes.xaxis.set_major_locator(FixedLocator([a * b for a, b in numbers(per_node)][::2]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
