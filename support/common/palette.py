"""The colours of the project's pictures: the same thing has the same colour in all of them.

They are those of Okabe and Ito (2008), which the colour-blind tell apart too; what goes over
the network is hatched as well, so that print shows it. What belongs together shares a colour:
gradients and what adds them up, parameters and what gathers them, the optimizer and its state.
"""

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
YELLOW, VERMILLION, GREY, PALE = "#F0E442", "#D55E00", "#999999", "#E5E5E5"

# In a step of training: the name in step.csv, its colour and its hatching.
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
# In memory: the name in profile.json, and its colour.
MEMORY = {
    "parameters": YELLOW,
    "gradients": ORANGE,
    "optimizer_state": GREEN,
    "activations": SKY,
    "all_else": PALE,
}
