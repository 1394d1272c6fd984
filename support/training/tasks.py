"""What is trained: the interface of a task, and which task the flags ask for.

The training scripts and the run know no more of a task than what `Task` says. Its
implementations, such as support/translation/task.py, are imported only when the flags ask for
them. docs/extending.md says how to add one.
"""

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from data import Batches
from model import LayerConfig
from support.common.errors import UserError
from support.training.settings import Settings, flags_of, option

if TYPE_CHECKING:
    from support.common.flops import StepCost


class Task(Protocol):
    """What is trained, on which data, and how it is evaluated."""

    pretrained_weights: dict[str, Tensor] | None  # by name, or None: begin with random ones
    # The metrics of an evaluation, for all of which higher is better. The first one, or without
    # metrics the loss, selects the best weights: see `note_evaluation` in progress.py.
    metrics: tuple[str, ...]
    unit: str  # what the corpus's examples are, such as "pairs" or "images"
    speed_unit: str  # what tokens_per_second counts

    @property
    def config(self) -> LayerConfig:
        """The shape of the model."""

    @property
    def batches(self) -> Batches:
        """The batches of training."""

    def __str__(self) -> str:
        """Returns the lines on the corpus that a run prints at its start."""

    def make_batches(self) -> None:
        """Divides the training set into batches of the size that the flags say."""

    def build_model(self) -> nn.Module:
        """Returns the model, not yet initialized: model(*batch) gives sums (loss, nll)."""

    def step_cost(self, step: int) -> "StepCost":
        """Returns how much all ranks compute in a step."""

    @property
    def has_test_set(self) -> bool:
        """Whether the corpus has a part "test"."""

    def evaluate(
        self, model: nn.Module, part: str, data_rank: int, data_size: int
    ) -> dict[str, float]:
        """Returns "loss", the nll per target, and the metrics of "valid", during training.

        A collective; all ranks get the same. It computes no gradients, and leaves the model in
        training mode. data_rank, data_size: see `evaluation_batches` in data.py.
        """

    def standard_error(self, value: float) -> float:
        """Returns the standard error of the first metric in validation, where it has `value`.

        0 if it is unknown.
        """

    def final_evaluation(
        self, model: nn.Module, part: str, data_rank: int, data_size: int
    ) -> tuple[dict[str, float], Any]:
        """Returns the final metrics of "valid" or "test", and the outputs for `report`.

        As `evaluate`, but more exact where that takes long. Raises UserError.
        """

    def report(
        self, part: str, metrics: dict[str, float], outputs: Any
    ) -> tuple[dict[str, Any], str]:
        """Writes the outputs to the run's folder, in rank 0 alone.

        part, metrics, outputs: of the last `final_evaluation`. Returns entries of summary.json,
        among them PART_NAME for each metric, and text to show.
        """

    def state(self) -> dict[str, Any]:
        """Returns what the checkpoint holds of the task: numbers and text, as in JSON."""


def prepare_task(args: Settings) -> Task:
    """Returns the task of a run, with its data ready to train on. Raises UserError.

    On GPUs it may enlarge the steps, in `args`.
    """
    task = make_task(args)
    if args.gpu_rate:
        from support.training.larger_steps import enlarge_steps, find_growth

        growth = find_growth(task, args)
        if growth > 1:
            enlarge_steps(args, growth)
            task.make_batches()
    for name in ("heads", "d_ff"):
        size = getattr(task.config, name)
        if size % args.tensor:
            raise UserError(
                f"--tensor {args.tensor}: {option(name)} {size} cannot be divided by it; each "
                f"process takes an equal part"
            )
    return task


def make_task(args: Settings) -> Task:
    """Returns the task that the flags ask for, with its data prepared. Raises UserError."""
    from support.corpora.task_type import (
        CLASSIFICATION_CORPORA,
        TRANSLATION_CORPORA,
        task_type,
    )

    state = args.task_state
    name = state["type"] if state else task_type(args.data, args.label)
    if state and args.data in (*CLASSIFICATION_CORPORA, *TRANSLATION_CORPORA):
        other = task_type(args.data)
        if name != other:
            raise UserError(
                f"--data {args.data} is for {other}, but {args.folder} is a run of {name}; "
                f"begin another with --name"
            )
    if name == "translation":
        from support.translation.task import Translation

        return Translation(args)
    from support.classification.task import Classification

    pretrained = None
    if args.pretrained and not args.is_resumed:
        from support.pretrained.load import load_pretrained

        pretrained = load_pretrained(args.pretrained, image_size=args.image_size)
    return Classification(args, pretrained)


def check_task(args: Settings) -> None:
    """Raises UserError for flags that the task has no use for, and for an impossible model."""
    if args.is_resumed:
        return
    from support.corpora.task_type import task_type

    task_name = task_type(args.data, args.label)
    for name, field in flags_of(type(args)).items():
        other = field.metadata["task"]
        if other in ("", task_name) or getattr(args, name) == field.default:
            continue
        hint = ""
        if task_name == "translation":
            hint = "; to classify a table, name its column of classes with --label"
        raise UserError(
            f"{option(name)} is for {other}, but {args.data} is for {task_name}{hint}"
        )
    if not args.pretrained:
        from support.common.shape import make_config

        make_config(LayerConfig, args)  # a task's own configuration has these limits, too
