"""Where the metrics go besides metrics.csv, if asked for: TensorBoard and Weights & Biases."""

import json
import uuid
from pathlib import Path

from support.common.errors import UserError


class Trackers:
    """The trackers of a run; a resumed run goes on in the record that it began.

    After a crash the steps since the checkpoint come again, with the same values: TensorBoard
    forgets the first ones, W&B the second. W&B's key comes from the environment or from its own
    login.
    """

    def __init__(self, args, folder: Path, about: dict, progress: dict, step: int):
        """about: of the run; progress: travels in the checkpoint; step: the last one done."""
        self.board = self.online = None
        if args.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(folder), purge_step=step + 1)
            self.board.add_text("config", json.dumps(about, indent=1), step)
        if args.wandb:
            import wandb

            progress.setdefault("wandb", uuid.uuid4().hex[:8])
            try:
                self.online = wandb.init(
                    project=args.wandb,
                    name=folder.name,
                    id=progress["wandb"],
                    resume="allow",
                    dir=str(folder),
                    config=about,
                )
            except wandb.Error as problem:
                raise UserError(f"--wandb: {problem}") from problem

    def track(self, step: int, values: dict[str, float]) -> None:
        if self.board:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)
        if self.online:
            self.online.log(values, step=step)

    def close(self) -> None:
        if self.board:
            self.board.close()
        if self.online:
            self.online.finish()
