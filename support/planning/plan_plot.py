"""Plots an estimate over the number of GPUs: what each mode needs and reaches on 1 to 1,024."""

from pathlib import Path

from support.common.figures import BLUE, GREEN, LEGEND_PLACE, ORANGE, SKY, VERMILION, new_figure
from support.planning.estimate import MAX_GPUS, MODE_NAMES, best, can_run, layouts
from support.planning.footprint import TrainingStep
from support.planning.machines import Hardware

# Colour and marker of each mode; the markers are for print without colour.
MODE_STYLES = {
    "cpu": (ORANGE, "D"),
    "ddp": (BLUE, "o"),
    "fsdp": (VERMILION, "s"),
    "hsdp": (GREEN, "^"),
    "tp": (SKY, "v"),
}
# The panels: what they show of an estimate.
PANELS = {
    "memory of the largest process (GB)": lambda estimate: estimate.peak_memory / 1e9,
    "tokens/s": lambda estimate: estimate.step.tokens / estimate.seconds,
    "MFU (%)": lambda estimate: 100 * estimate.mfu,
    "exposed communication (% of a step)": lambda estimate: (
        100 * estimate.communication / estimate.seconds
    ),
}


def plot_estimates(
    step: TrainingStep, hardware: Hardware, modes: list[str], per_node: int, path: Path
) -> None:
    """Writes a PNG with memory, speed, MFU and the share of exposed communication.

    Estimates that do not fit appear in the panel of memory alone.
    """
    powers = [2**i for i in range(MAX_GPUS.bit_length())]
    shown_layouts = layouts(per_node, powers)
    with new_figure(path, 7, 5.2, follow_link=True) as figure:
        panels = list(figure.subplots(2, 2, sharex=True).flat)
        for mode in modes:
            color, marker = MODE_STYLES[mode]
            estimates = [
                best(step, hardware, mode, *layout)
                for layout in shown_layouts
                if can_run(step, mode, *layout)
            ]
            fitting = [estimate for estimate in estimates if estimate.fits]
            for axes, value in zip(panels, PANELS.values()):
                shown = estimates if axes is panels[0] else fitting
                x = [estimate.gpus for estimate in shown]
                y = [value(estimate) for estimate in shown]
                axes.plot(x, y, color=color, marker=marker, label=MODE_NAMES[mode])
        limit = hardware.usable_memory / 1e9
        holder = "process" if hardware.cpu else "GPU"
        label = f"what a {holder} can hold"
        panels[0].axhline(limit, color="black", linestyle="--", label=label)
        set_scales(panels, [nodes * gpus for nodes, gpus in shown_layouts])
        for axes in panels[2:]:
            axes.set_xlabel("processes" if hardware.cpu else "GPUs")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc=LEGEND_PLACE, ncols=len(labels))


def set_scales(panels: list, gpus: list[int]) -> None:
    """Sets titles, scales and ticks; both axes of the two upper panels are logarithmic."""
    for axes in panels[:2]:
        axes.set_yscale("log")
        axes.locator_params(axis="y", subs=(1, 2, 5))
        axes.yaxis.set_major_formatter("{x:,.10g}")
    for axes in panels[2:]:
        axes.set_ylim(0, None)
    for axes, title in zip(panels, PANELS):
        axes.set_title(title, loc="left", fontsize=8)
        axes.grid(True)
        axes.set_xscale("log", base=2)
        axes.set_xticks(gpus[::2])
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.minorticks_off()
