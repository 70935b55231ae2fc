"""The transformer of ``memkit.program.transformer`` on paper, from the token ids to the loss.

The order of the calls is that of ``Transformer.forward``. ``run_forward`` runs the blocks that differ and
says how often each stands for others: layers in the middle are alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from memkit.formats.dtypes import dtype_bits
from memkit.formula.attention import Attention
from memkit.formula.kernels import embedding_backward_buffers
from memkit.formula.paper import Block, Leaf, Paper, Storage, Tensor
from memkit.formula.parameters import embedding_parameters, output_parameters
from memkit.setup.layouts import Layout
from memkit.setup.strategies import Strategy
from memkit.setup.training import TrainingSetup

Unit = tuple[tuple[int, bool], ...]
"""Regions in order, each as (number of blocks, whether they run again). A model under a strategy is a row of units."""


class Alone:
    """The moments of a step at which a rank of many gathers, sends or frees; a rank without others does nothing.

    ``layout``: which share of the states it keeps; ``None``: all. Its subclasses are in ``memkit.sharding``.
    """

    layout: Layout | None = None

    def computes(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup that forward and backward run in."""
        return setup

    def adds_gradients(self, accumulates: bool) -> bool:
        """Whether a finished gradient is added to one that stands already."""
        return accumulates

    def start(self, paper: Paper) -> None:
        """A micro-batch begins, on this paper."""

    def enter_model(self) -> None:
        """The forward begins."""

    def enter_blocks(self, number: int) -> None:
        """The forward of a region of blocks begins, ``number`` being the first."""

    def leave_blocks(self, number: int) -> None:
        """The forward of these blocks ends."""

    def leave_model(self) -> None:
        """The loss is there."""

    def enter_backward(self, accumulates: bool) -> None:
        """The backward begins. ``accumulates``: earlier micro-batches left gradients."""

    def enter_backward_of(self, block: int) -> None:
        """The backward of a block begins."""

    def leave_backward_of(self, block: int, gradients: list[Storage], times: int) -> list[Storage]:
        """The backward of ``times`` blocks that are alike has left these gradients. Returns what is kept of them."""
        return gradients

    def leave_backward(self, gradients: list[Storage]) -> list[Storage]:
        """The backward ends and has left these gradients of what is in no block. Returns what is kept of them."""
        return gradients


ALONE = Alone()


class Transformer(Attention):
    """The model's forward. ``rank`` does what a rank of many does around each block."""

    def __init__(self, setup: TrainingSetup, rank: Alone = ALONE):
        super().__init__(setup)
        self.rank = rank
        self.names: list[Tensor] = []  # what the program holds until its forward returns
        self.shared: dict[str, Tensor] = {}
        self.x: Tensor | None = None  # the hidden state
        self.add_parameters(embedding_parameters(self.model) + output_parameters(self.model))

    def embed(self) -> None:
        """Token ids to the first hidden state, and the tables that all blocks share."""
        paper = self.paper
        self.enter("embedding")
        ids = paper.empty("b s", "int64", "token ids", "randint")
        self.targets = paper.empty("b s", "int64", op="randint")
        paper.note(ids.storage, "token embedding")
        self.names += [ids, self.targets]
        self.rank.enter_model()
        x = self.embedding("token_embedding", ids, "b s h")
        if self.model.position == "learned":
            positions = paper.empty("s", "int64", "positions", "arange")
            paper.note(positions.storage, "position embedding")
            self.names.append(positions)
            x = self.add(x, self.embedding("position_embedding", positions, "s h"))
        self.x = self.dropout(x, "embedding")
        del x
        if self.setup.attention == "stored":
            self.shared["causal mask"] = paper.empty("s s", "bool", "causal mask", "triu_")
        if self.model.position == "rotary":
            self.make_rotary_tables()
        for table in self.shared.values():
            paper.note(table.storage, "every block", "shared")

    def embedding(self, name: str, indices: Tensor, axes: str) -> Tensor:
        """A row of the table for every index."""
        table, width = self.parameters[f"{name}.weight"], self.model.hidden_size
        value_bytes = dtype_bits(self.weight_dtype) // 8
        stages = embedding_backward_buffers(indices.count, table.count // width, width, value_bytes)
        return self.paper.run("embedding", [table], axes, keeps=[indices], scratch_bytes=self.highest(stages))

    def make_rotary_tables(self) -> None:
        """Cosines and sines of every angle, computed in float32."""
        paper = self.paper
        half = paper.empty("s d/2", "float32")
        angles = paper.empty("s d", "float32")
        del half
        for name in ("cosines", "sines"):
            wide = paper.empty("s d", "float32")
            self.shared[name] = wide if self.dtype == "float32" else paper.empty("s d", self.dtype)
            paper.rename(self.shared[name], name)
            del wide
        del angles

    def stage(self, unit: Unit, number: int) -> None:
        """The blocks of a unit in their regions, ``number`` being the first."""
        strategy = self.setup.recomputation
        make_policy = partial(saving_policy, strategy) if strategy.saved_ops else None
        for num_blocks, is_run_again in unit:
            self.rank.enter_blocks(number)
            run = partial(self.blocks, num_blocks, number)
            if is_run_again:
                self.prefix = ""
                self.enter(f"blocks.{number}", "checkpoint")
                self.paper.rename(self.x, "block input")
                self.x = self.paper.checkpoint(
                    run, self.x, self.shared, make_policy=make_policy, stops_early=strategy.stops_early
                )
            else:
                self.x = run(self.x, self.shared)
            self.rank.leave_blocks(number)
            number += num_blocks

    def blocks(self, num_blocks: int, number: int, x: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """Blocks behind one another, each with parameters of its own."""
        for i in range(number, number + num_blocks):
            self.prefix = f"blocks.{i}."
            self.add_block()
            x = self.block(x, shared)
        return x

    def block(self, x: Tensor, shared: dict[str, Tensor]) -> Tensor:
        """x + attention(norm(x)), then the same with the MLP."""
        x = self.add(x, self.dropout(self.attention(self.norm("norm_1", x), shared), "attention"))
        return self.add(x, self.dropout(self.mlp(self.norm("norm_2", x)), "mlp"))

    def lose(self) -> None:
        """Final norm, head, mean cross-entropy, divided by the number of micro-batches."""
        self.prefix = ""
        loss = self.cross_entropy(self.logits())
        self.x = None
        self.loss = self.paper.run("div", [loss], "", name="loss")
        del loss
        self.paper.note(self.loss.storage, "the training loop")
        self.rank.leave_model()

    def logits(self) -> Tensor:
        """Final norm and head, which may be the token embedding's own table."""
        n = self.norm("norm", self.x)
        self.enter("head")
        logits = self.linear(n, "token_embedding" if self.model.ties_embeddings else "head")
        del n
        self.enter("loss")
        return self.paper.cast(logits, "float32") if self.setup.upcasts_logits else logits

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """The mean over the targets. A CPU's autocast casts for all of it, CUDA's for log_softmax alone."""
        paper, casts = self.paper, self.setup.precision.uses_autocast and not self.is_cuda
        wide = paper.cast(logits, "float32") if casts else logits
        log_p = self.softmax("log_softmax", wide, "log-probabilities")
        paper.rename(self.targets, "target ids")
        extra = [("number of targets", "", log_p.dtype)]
        return paper.run("nll_loss", [log_p], "", keeps=[log_p, self.targets], extra=extra)


def saving_policy(strategy: Strategy) -> Callable[[str], bool]:
    """For each operation of a region in turn: whether the strategy's policy saves what it puts out."""
    num_linears = 0

    def saves(op: str) -> bool:
        nonlocal num_linears
        is_linear = op in ("mm", "addmm")
        num_linears += is_linear
        is_skipped = strategy.saves_every_second and is_linear and num_linears % 2 == 0
        return op in strategy.saved_ops and not is_skipped

    return saves


@dataclass
class Part:
    """A part of the forward that happens ``times`` times; its operations and what they keep are positions on the paper.

    ``casts`` are autocast's of its parameters, ``block`` the number of its first block.
    """

    times: int
    block: int | None
    operations: slice
    kept: slice
    end_of_events: int
    casts: dict[Leaf, Tensor]


class Forward:
    """A forward that has been run, in parts: the embedding, units of blocks, and what comes after them."""

    def __init__(self, setup: TrainingSetup, is_whole: bool = False, rank: Alone = ALONE):
        """``is_whole``: every block is run, none stands for others."""
        self.model, self.parts, number = Transformer(setup, rank), [], 0
        self.paper = self.model.paper
        rank.start(self.paper)
        self._run(self.model.embed)
        num_first = 1 if setup.adapter is None else 2  # frozen, the first may need no table for its backward
        for times, unit in units_of(setup.recomputation, setup.model.num_layers, is_whole, num_first):
            self._run(partial(self.model.stage, unit, number), times, number)
            number += times * sum(num_blocks for num_blocks, _ in unit)
        self._run(self.model.lose)
        self.loss, self.model.loss = self.model.loss, None

    def _run(self, run: Callable[[], None], times: int = 1, block: int | None = None) -> None:
        paper = self.paper
        start, paper.casts = (len(paper.operations), len(paper.kept)), {}
        run()
        end = len(paper.operations), len(paper.kept)
        self.parts.append(Part(times, block, *map(slice, start, end), len(paper.events), paper.casts))

    @property
    def units(self) -> list[Part]:
        """The parts that are blocks."""
        return self.parts[1:-1]

    def kept(self, part: Part) -> list[Block]:
        """The activations that a part was the first to keep; casts of weights are none."""
        return [block for block in self.paper.kept[part.kept] if not block.is_cast]

    def end(self) -> None:
        """Autocast is left and forgets its casts, and what the program named goes out of scope."""
        for part in self.parts:
            part.casts.clear()
        self.model.names, self.model.targets, self.model.shared = [], None, {}


def units_of(
    strategy: Strategy, num_layers: int, is_whole: bool = False, num_first: int = 1
) -> list[tuple[int, Unit]]:  # fmt: skip
    """The units of blocks in order, each with how often it comes; neighbours in the middle that are equal are one.

    The first ``num_first`` and the last are never joined with others, for their backward frees other tensors: the first
    is the last to need the tables that all share, and the last one's output goes to the final norm.

    >>> from memkit.setup.strategies import NONE, every
    >>> units_of(NONE, 7)
    [(1, ((1, False),)), (5, ((1, False),)), (1, ((1, False),))]
    >>> units_of(every(2), 9)[1:]
    [(3, ((1, True), (1, False))), (1, ((1, True),))]
    """
    regions = [(len(blocks), again) for blocks, again in strategy.regions(num_layers)]
    period = strategy.period if strategy.scope == "blocks" else 1
    units = [tuple(regions[start : start + period]) for start in range(0, len(regions), period)]
    if is_whole or len(units) < num_first + 3:
        return [(1, unit) for unit in units]
    between = [(len(list(equal)), unit) for unit, equal in groupby(units[num_first:-1])]
    return [*((1, unit) for unit in units[:num_first]), *between, (1, units[-1])]
