"""The transformer of ``memkit.program.transformer`` on paper, from the token ids to the loss.

``Forward`` runs the blocks that differ and says how often each stands for others: layers in the middle are alike.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial, singledispatch
from itertools import groupby
from typing import NamedTuple

from memkit.formats.dtypes import dtype_bits
from memkit.formula.attention import Attention
from memkit.formula.kernels import embedding_backward_buffers
from memkit.formula.layers import MLPS
from memkit.formula.optimizer import write_states, write_update, write_weights
from memkit.formula.paper import Block, Leaf, Operation, Paper, Storage, Tensor
from memkit.formula.parameters import (
    Parameter,
    block_parameters,
    embedding_parameters,
    output_parameters,
    parameter_ledger,
)
from memkit.setup.models import ModelConfig
from memkit.setup.strategies import Strategy
from memkit.setup.training import TrainingSetup

Unit = tuple[tuple[tuple[str, ...], bool], ...]
"""Regions in order, each as (the kinds of its blocks' MLPs, whether they run again). A model is a row of units."""


class Run:
    """How a run keeps, computes and steps its parameters: on one card, all of them trained, stepped when all gradients
    are there. A run that does otherwise (adapters, offload, a rank of many) is a subclass; ``run_of`` finds it.

    ``block`` is the number of the first block of a region, or ``None`` for the model around the blocks.
    """

    is_repeated = True
    """Whether one block's weights and states stand for those of all that are alike."""

    num_first = 1
    """So many blocks at the start are not joined with others: the first is the last to need the tables of all."""

    @property
    def forward(self) -> type["Forward"]:
        """What runs the model on paper."""
        return Forward

    def check(self, setup: TrainingSetup) -> None:
        """Raises: ValueError: no formula knows the peak of such a run."""

    # What stands, and what steps

    def write_weights(self, setup: TrainingSetup, paper: Paper) -> None:
        """What exists before the first step."""
        write_weights(setup, paper, setup.precision, parameter_ledger(setup.model))

    def write_states(self, setup: TrainingSetup, paper: Paper) -> None:
        """What the first step of the optimizer makes, and leaves."""
        write_states(setup, paper, setup.precision, parameter_ledger(setup.model))

    def write_step(self, setup: TrainingSetup, paper: Paper) -> None:
        """The temporaries of one step, in the order in which they come and go."""
        paper.where = "optimizer"
        write_update(setup, paper, setup.precision, parameter_ledger(setup.model))

    def gradient_dtypes(self, setup: TrainingSetup) -> list[str]:
        """Those that each parameter's gradient is kept in."""
        return [dtype for dtype in (setup.precision.gradient_dtype, setup.precision.main_gradient_dtype) if dtype]

    def use(self, setup: TrainingSetup, paper: Paper, makes_states: bool) -> Callable[[Parameter], bool] | None:
        """What is called with a parameter whose gradient is complete, and says whether the gradient is freed then."""
        return None

    def has_optimizer_step(self, setup: TrainingSetup) -> bool:
        """Whether there is a step after the backward."""
        return True

    # Moments of a step

    def computes(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup that forward and backward run in."""
        return setup

    def adds_gradients(self, accumulates: bool) -> bool:
        """Whether a finished gradient is added to one that stands already."""
        return accumulates

    def start(self, paper: Paper) -> None:
        """A micro-batch begins, on this paper."""

    def enter(self, block: int | None) -> None:
        """The forward begins, of the model or of a region of blocks."""

    def leave(self, block: int | None) -> None:
        """That forward ends."""

    def enter_backward(self, block: int | None, accumulates: bool) -> None:
        """The backward begins. ``accumulates``: earlier micro-batches left gradients."""

    def leave_backward(self, block: int | None, gradients: list[Storage], times: int = 1) -> list[Storage]:
        """The backward of ``times`` blocks that are alike, or of what is in no block, has left these gradients.

        Returns what is kept of them.
        """
        return gradients


PLAIN = Run()


@singledispatch
def run_of(setup: TrainingSetup) -> Run:
    """How this setup runs. A subclass of ``TrainingSetup`` registers its own: ``run_of.register(Job)(...)``."""
    return PLAIN


def forward_of(setup: TrainingSetup, is_whole: bool = False) -> "Forward":
    """The setup's forward on paper."""
    run = run_of(setup)
    return run.forward(setup, is_whole, run)


class Part(NamedTuple):
    """A part of the forward that happens ``times`` times; ``block`` is the number of its first block.

    ``kept`` is what its operations were the first to keep, ``casts`` are autocast's of its parameters.
    """

    times: int
    block: int | None
    operations: list[Operation]
    kept: list[Block]
    casts: dict[Leaf, Tensor]
    end_of_events: int


class Forward(Attention):
    """The forward on paper, in parts: the embedding, units of blocks, and what comes after them.

    ``run`` says what happens around each block. ``is_whole``: every block is run, none stands for others.
    """

    def __init__(self, setup: TrainingSetup, is_whole: bool = False, run: Run = PLAIN):
        super().__init__(setup)
        self.run, self.parts, paper = run, [], self.paper
        run.start(paper)
        self.add_parameters(embedding_parameters(self.model) + output_parameters(self.model))
        units = units_of(setup.recomputation, self.model, is_whole, run.num_first)
        self._names = self._run(units)
        for _ in range(len(units) + 2):  # the embedding, each unit, the end
            paper.operations, paper.kept, paper.casts = [], [], {}  # the part's own, which the next line fills
            times, block = next(self._names)
            self.parts.append(Part(times, block, paper.operations, paper.kept, paper.casts, len(paper.events)))

    @property
    def units(self) -> list[Part]:
        """The parts that are blocks."""
        return self.parts[1:-1]

    def end(self) -> None:
        """Autocast is left and forgets its casts, and what the program named goes out of scope, but for the loss."""
        for part in self.parts:
            part.casts.clear()
        self._names.close()

    def _run(self, units: Iterable[tuple[int, Unit]]) -> Iterator[tuple[int, int | None]]:
        """From the token ids to the loss, in the order of ``Transformer.forward``.

        It stops after the embedding, after each unit and after the loss, and says how often that comes and the number
        of its first block. The names in it are the program's: they are there until it is closed.
        """
        paper, number = self.paper, 0
        self.enter("embedding")
        ids, targets = (paper.empty("b s", "int64", name, "randint") for name in ("token ids", "target ids"))
        paper.note(ids.storage, "token embedding")
        self.run.enter(None)
        x = self.embedding("token_embedding", ids, "b s h")
        if self.model.position == "learned":
            positions = paper.empty("s", "int64", "positions", "arange")
            paper.note(positions.storage, "position embedding")
            x = self.add(x, self.embedding("position_embedding", positions, "s h"))
        x = self.dropout(x, "embedding")
        shared = self.tables()
        yield 1, None
        for times, unit in units:
            first = number
            for kinds, is_run_again in unit:
                x = self.region(len(kinds), number, is_run_again, x, shared)
                number += len(kinds)
            yield times, first
            number += (times - 1) * (number - first)
        self.prefix = ""
        loss = self.cross_entropy(self.logits(x), targets)
        del x  # ``Transformer.forward`` has returned; the training loop divides
        self.loss = paper.run("div", [loss], "", name="loss")  # by the number of micro-batches
        del loss
        paper.note(self.loss.storage, "the training loop")
        self.run.leave(None)
        yield 1, None

    def embedding(self, name: str, indices: Tensor, axes: str) -> Tensor:
        """A row of the table for every index."""
        table, width = self.parameters[f"{name}.weight"], self.model.hidden_size
        value_bytes = dtype_bits(self.weight_dtype) // 8
        stages = embedding_backward_buffers(indices.count, table.count // width, width, value_bytes)
        return self.paper.run("embedding", [table], axes, keeps=[indices], scratch_bytes=self.highest(stages))

    def tables(self) -> dict[str, Tensor]:
        """What all blocks share: the causal mask, cosines and sines of every angle, computed in float32."""
        paper, shared = self.paper, {}
        if self.setup.attention == "stored":
            shared["causal mask"] = paper.empty("s s", "bool", "causal mask", "triu_")
        if self.model.position == "rotary":
            half = paper.empty("s d/2", "float32")  # what ``outer`` made, until its name is bound to the cat
            angles = paper.empty("s d", "float32")
            del half
            for name in ("cosines", "sines"):
                wide = paper.empty("s d", "float32", name)
                shared[name] = wide if self.dtype == "float32" else paper.empty("s d", self.dtype, name)
                del wide  # no name has what ``.cos()`` made
            del angles
        for table in shared.values():
            paper.note(table.storage, "every block", "shared")
        return shared

    def region(self, num_blocks: int, number: int, is_run_again: bool, x: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """Blocks that are run again in the backward, or are not, ``number`` being the first."""
        strategy, run = self.setup.recomputation, partial(self.blocks, num_blocks, number)
        self.run.enter(number)
        if is_run_again:
            self.prefix = ""
            self.enter(f"blocks.{number}", "checkpoint")
            make_policy = strategy.policy if strategy.saved_ops else None
            out = self.paper.checkpoint(
                run, self.paper.rename(x, "block input"), shared, make_policy=make_policy,
                stops_early=strategy.stops_early,
            )
        else:
            out = run(x, shared)
        self.run.leave(number)
        return out

    def blocks(self, num_blocks: int, number: int, x: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """Blocks behind one another, each with parameters of its own."""
        for i in range(number, number + num_blocks):
            self.prefix = f"blocks.{i}."
            kind = self.model.mlp_of(i)
            self.add_parameters(self.parameters_of_block(kind))
            x = self.block(x, shared, MLPS[kind])
        return x

    def parameters_of_block(self, kind: str) -> Iterable[Parameter]:
        """What a block with an MLP of this kind has."""
        return block_parameters(self.model, kind)

    def block(self, x: Tensor, shared: dict[str, Tensor], mlp: Callable[["Forward", Tensor], Tensor]) -> Tensor:
        """x + attention(norm(x)), then the same with the MLP."""
        x = self.add(x, self.dropout(self.attention(self.norm("norm_1", x), shared), "attention"))
        return self.add(x, self.dropout(mlp(self, self.norm("norm_2", x)), "mlp"))

    def logits(self, x: Tensor) -> Tensor:
        """Final norm and head, which may be the token embedding's own table."""
        n = self.norm("norm", x)
        self.enter("head")
        logits = self.linear(n, "token_embedding" if self.model.ties_embeddings else "head")
        del n  # no name had it: it is gone before the copy in float32
        self.enter("loss")
        return self.paper.cast(logits, "float32") if self.setup.upcasts_logits else logits

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over the targets. A CPU's autocast casts for all of it, CUDA's for log_softmax alone."""
        paper, casts = self.paper, self.setup.precision.uses_autocast and not self.is_cuda
        wide = paper.cast(logits, "float32") if casts else logits
        log_p = self.softmax("log_softmax", wide, "log-probabilities")
        extra = [("number of targets", "", log_p.dtype)]
        return paper.run("nll_loss", [log_p], "", keeps=[log_p, targets], extra=extra)


def units_of(
    strategy: Strategy, model: ModelConfig, is_whole: bool = False, num_first: int = 1
) -> list[tuple[int, Unit]]:
    """The units of blocks in order, each with how often it comes; neighbours in the middle that are equal are one.

    The first ``num_first`` and the last are never joined with others, for their backward frees other tensors: the first
    is the last to need the tables that all share, and the last one's output goes to the final norm.

    >>> from memkit.setup.models import GPT2_SMALL
    >>> from memkit.setup.strategies import every
    >>> units_of(every(2), GPT2_SMALL)[1]
    (4, ((('gelu',), True), (('gelu',), False)))
    """
    regions = [(tuple(map(model.mlp_of, blocks)), again) for blocks, again in strategy.regions(model.num_layers)]
    period = strategy.period if strategy.scope == "blocks" else 1
    units = [tuple(regions[start : start + period]) for start in range(0, len(regions), period)]
    if is_whole or len(units) < num_first + 3:
        return [(1, unit) for unit in units]
    between = [(len(list(equal)), unit) for unit, equal in groupby(units[num_first:-1])]
    return [*((1, unit) for unit in units[:num_first]), *between, (1, units[-1])]
