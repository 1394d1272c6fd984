"""Sends the metrics to TensorBoard and Weights & Biases, if the flags ask for it."""

import json
from pathlib import Path
from typing import Any

from support.common.errors import UserError


class Trackers:
    """The trackers of a run. A resumed run continues the records that it began.

    After a crash, the steps since the checkpoint are repeated with the same values: TensorBoard
    drops the first ones, W&B the second. W&B takes its key from the environment or from its own
    login.
    """

    def __init__(self, args, folder: Path, about: dict[str, Any], wandb_id: str, step: int):
        """about: what config.json says; wandb_id: of the run; step: the last one done."""
        self.tensorboard = None
        self.wandb_run = None
        if args.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = SummaryWriter(str(folder), purge_step=step + 1)
            self.tensorboard.add_text("config", json.dumps(about, indent=1), step)
        if args.wandb:
            import wandb

            try:
                self.wandb_run = wandb.init(
                    project=args.wandb,
                    name=folder.name,
                    id=wandb_id,
                    resume="allow",
                    dir=str(folder),
                    config=about,
                )
            except wandb.Error as problem:
                raise UserError(f"--wandb: {problem}") from problem

    def track(self, step: int, values: dict[str, float]) -> None:
        """Adds the values of a step, by name."""
        if self.tensorboard:
            for name, value in values.items():
                self.tensorboard.add_scalar(name, value, step)
        if self.wandb_run:
            self.wandb_run.log(values, step=step)

    def close(self) -> None:
        """Ends the records."""
        if self.tensorboard:
            self.tensorboard.close()
        if self.wandb_run:
            self.wandb_run.finish()
