"""The colours of the project's figures: the same thing has the same colour in all of them.

They are those of Okabe and Ito (2008), which colour-blind readers can tell apart. What goes
over the network is also hatched, for print. What belongs together shares a colour: gradients
and what sums them, parameters and what gathers them, the optimizer and its state.
"""

BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
YELLOW = "#F0E442"
VERMILLION = "#D55E00"
GREY = "#999999"
PALE = "#E5E5E5"

# A training step: the activity in step.csv, its colour and its hatching.
STEP = {
    "batch": (GREY, ""),
    "forward": (SKY, ""),
    "backward": (BLUE, ""),
    "optimizer": (GREEN, ""),
    "exposed": ("white", ""),
    "waiting": (PALE, ""),
    "all-gather": (YELLOW, "...."),
    "reduce-scatter": (ORANGE, r"\\\\\\"),
    "all-reduce": (ORANGE, "//////"),
}
# Memory: the part in profile.json, and its colour.
MEMORY = {
    "parameters": YELLOW,
    "gradients": ORANGE,
    "optimizer_state": GREEN,
    "activations": SKY,
    "all_else": PALE,
}
