"""Plots an estimate over the number of GPUs: what each mode needs and reaches on 1 to 1,024."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, StrMethodFormatter

from support.common.figures import save
from support.common.palette import BLUE, GREEN, ORANGE, VERMILLION
from support.planning.estimate import MAX_GPUS, MODE_NAMES, Estimate, Hardware, best
from support.planning.footprint import TrainingStep

# Colour and marker of each mode: the markers are for print.
MODE_STYLES = {
    "cpu": (ORANGE, "D"),
    "ddp": (BLUE, "o"),
    "fsdp": (VERMILLION, "s"),
    "hsdp": (GREEN, "^"),
}
RC_PARAMS = {
    "font.size": 8,
    "legend.fontsize": 8,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
}


def doubling_layouts(per_node: int) -> list[tuple[int, int]]:
    """Returns (nodes, GPUs on each) of 1, 2, 4 ... GPUs; of several nodes only whole ones."""
    layouts = []
    gpus = 1
    while gpus < per_node:
        layouts.append((1, gpus))
        gpus *= 2
    nodes = 1
    while nodes * per_node <= MAX_GPUS:
        layouts.append((nodes, per_node))
        nodes *= 2
    return layouts


def plot_mode(panels: list[Axes], mode: str, estimates: list[Estimate]) -> None:
    """Adds a mode's line to the four panels.

    Estimates that do not fit have a point in the panel of memory alone.
    """
    fitting = [estimate for estimate in estimates if estimate.fits]
    all_gpus = [estimate.gpus for estimate in estimates]
    gpus = [estimate.gpus for estimate in fitting]
    memory = [estimate.peak_memory / 1e9 for estimate in estimates]
    speed = [estimate.step.tokens / estimate.seconds for estimate in fitting]
    mfu = [100 * estimate.mfu for estimate in fitting]
    exchange = [100 * estimate.exchange / estimate.seconds for estimate in fitting]
    color, marker = MODE_STYLES[mode]
    lines = [(all_gpus, memory), (gpus, speed), (gpus, mfu), (gpus, exchange)]
    for axes, (x, y) in zip(panels, lines):
        axes.plot(x, y, color=color, marker=marker, label=MODE_NAMES[mode])


def plot_estimates(
    step: TrainingStep,
    hardware: Hardware,
    modes: list[str],
    per_node: int,
    path: Path,
    accumulate: int = 0,
) -> None:
    """Writes a PNG with memory, speed, MFU and the share of exchanges that is not hidden."""
    matplotlib.rcParams.update(RC_PARAMS)
    figure = Figure((7, 5.2), dpi=200, layout="constrained")
    panels = list(figure.subplots(2, 2, sharex=True).flat)
    layouts = doubling_layouts(per_node)
    for mode in modes:
        estimates = [
            best(step, hardware, mode, nodes, gpus, accumulate) for nodes, gpus in layouts
        ]
        plot_mode(panels, mode, estimates)

    memory, speed, mfu, exchange = panels
    memory.axhline(
        hardware.usable_memory / 1e9,
        color="black",
        linestyle=(0, (4, 2)),
        label="what a GPU can hold",
    )
    memory.set_title("memory of the largest process (GB)", loc="left", fontsize=8)
    speed.set_title("tokens/s", loc="left", fontsize=8)
    mfu.set_title("MFU (%)", loc="left", fontsize=8)
    exchange.set_title("exchange that is not hidden (% of a step)", loc="left", fontsize=8)
    for axes, number_format in ((memory, "{x:,g}"), (speed, "{x:,.0f}")):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter(number_format))
        axes.yaxis.set_minor_locator(NullLocator())
    for axes in (mfu, exchange):
        axes.set(xlabel="processes" if hardware.cpu else "GPUs", ylim=(0, None))
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator([n * gpus for n, gpus in layouts][::2]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.xaxis.set_minor_locator(NullLocator())
    handles, labels = memory.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)
