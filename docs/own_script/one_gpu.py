"""Trains a small model on one device. ddp.py and fsdp.py are the same script on several.

python docs/own_script/one_gpu.py     # again to resume: it saves after each epoch
"""

from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

BATCH_SIZE = 16  # sequences of a step
ACCUMULATE = 2  # micro-batches of a step
EPOCHS = 3
DROPOUT = 0.1
CHECKPOINT = Path("one_gpu.pt")
TOKENS = 50
IGNORED = -100  # in the place of a target: the token has none


def make_data(count: int) -> TensorDataset:
    """Returns sequences of tokens. A target is a function of the token and the one before."""
    x = torch.randint(0, TOKENS, (count, 12))
    y = (3 * x + x.roll(1, 1)) % TOKENS
    return TensorDataset(x, y.where(torch.rand(y.shape) < 0.7, IGNORED))


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.before = nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, length). Returns logits, (batch * length, TOKENS)."""
        h = self.embedding(x) + self.before(x.roll(1, 1))
        for block in self.blocks:
            h = block(h)
        return self.head(h.flatten(0, 1))


def sum_of_losses(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y.flatten(), reduction="sum")


@torch.no_grad()
def count_right(model: nn.Module, data: Dataset, device: torch.device) -> Tensor:
    """Returns how many predictions are right, and how many targets there are, (2,)."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for x, y in DataLoader(data, BATCH_SIZE):
        x, y = x.to(device), y.to(device).flatten()
        is_target = y != IGNORED
        is_right = (model(x).argmax(-1) == y) & is_target
        counts += torch.stack([is_right.sum(), is_target.sum()])
    model.train()
    return counts


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    train_set, valid_set = make_data(1500), make_data(155)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    epoch = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch = saved["epoch"]
        print(f"{CHECKPOINT}: {epoch} epochs are done")

    loader = DataLoader(train_set, BATCH_SIZE // ACCUMULATE, shuffle=True, drop_last=True)
    while epoch < EPOCHS:
        torch.manual_seed(epoch)  # so that a resumed run draws the same numbers
        batches = iter(loader)
        while micro_batches := list(islice(batches, ACCUMULATE)):
            num_targets = sum((y != IGNORED).sum() for _, y in micro_batches).to(device)
            step_loss = torch.zeros((), device=device)
            for x, y in micro_batches:
                loss = sum_of_losses(model(x.to(device)), y.to(device))
                (loss / num_targets).backward()
                step_loss += loss.detach()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        epoch += 1
        right, targets = count_right(model, valid_set, device).tolist()
        loss = step_loss / num_targets  # of the epoch's last step, as is the norm
        accuracy = right / targets
        print(f"epoch {epoch}: loss {loss:.6f}, norm {norm:.6f}, accuracy {accuracy:.4f}")
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        partial = CHECKPOINT.with_suffix(".partial")
        torch.save(states | {"epoch": epoch}, partial)
        partial.replace(CHECKPOINT)  # so that there is always a whole file


if __name__ == "__main__":
    main()
