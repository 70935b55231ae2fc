"""The forward of ``memkit.program.transformer`` as operations on a tape, from the token ids to the loss.

The order of the calls is that of ``Transformer.forward``. ``write_forward`` writes the blocks that differ and
says how often each stands for others: layers in the middle are alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from memkit.formats.dtypes import dtype_bits
from memkit.formula.attention import attend
from memkit.formula.kernels import embedding_backward_buffers
from memkit.formula.layers import Page, add, dropout, linear, mlp, norm, softmax
from memkit.formula.parameters import embedding_parameters, output_parameters
from memkit.formula.ranks import ALONE, Alone
from memkit.formula.tape import Operation, Storage, Tape, Value
from memkit.setup.strategies import Strategy
from memkit.setup.training import TrainingSetup

Unit = tuple[tuple[int, bool], ...]
"""Regions behind one another as (blocks, are run again): what repeats in a model under a strategy."""


@dataclass(frozen=True)
class Part:
    """Positions on the tape of a part of the forward that happens ``times`` times."""

    times: int
    events: slice
    operations: slice
    kept: slice
    parameters: tuple[Value, ...] = ()
    block: int | None = None  # the number of its first block


@dataclass(frozen=True)
class Forward:
    """A written forward: the embedding, units of blocks, and what comes after them."""

    page: Page
    before: Part
    units: tuple[Part, ...]
    after: Part
    loss: Value

    @property
    def tape(self) -> Tape:
        """The tape it is written on."""
        return self.page.tape

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts in order."""
        return self.before, *self.units, self.after

    def operations(self, part: Part) -> list[Operation]:
        """The operations of a part."""
        return self.tape.operations[part.operations]

    def kept(self, part: Part) -> list[Storage]:
        """The activations that a part was the first to keep; casts of weights are none."""
        return [storage for storage in self.tape.kept[part.kept] if not storage.is_cast]

    def end(self) -> None:
        """What the program named goes out of scope; autocast, left before, forgot its casts."""
        self.tape.forget_casts(list(self.tape.weight_casts))
        self.tape.drop(*self.page.names)


def write_forward(setup: TrainingSetup, is_whole: bool = False, rank: Alone = ALONE) -> Forward:
    """One micro-batch's forward up to the loss. ``is_whole``: every block is written, none stands for others."""
    page, parts = Page(setup), []
    page.rank = rank
    rank.start(page.tape)
    tape, strategy = page.tape, setup.recomputation

    def part(write: Callable[[], Value], times: int = 1, block: int | None = None) -> Value:
        start = len(tape.events), len(tape.operations), len(tape.kept)
        page.new_parameters = []
        out = write()
        end = len(tape.events), len(tape.operations), len(tape.kept)
        parts.append(Part(times, *map(slice, start, end), tuple(page.new_parameters), block))
        return out

    page.add_parameters(embedding_parameters(setup.model) + output_parameters(setup.model))
    x, number = part(partial(embed, page)), 0
    num_first = 1 if setup.adapter is None else 2  # frozen, the first may need no table for its backward
    for times, unit in units_of(strategy, setup.model.num_layers, is_whole, num_first):
        x = part(partial(write_unit, page, unit, number, x), times, number)
        number += times * sum(num_blocks for num_blocks, _ in unit)
    page.prefix = ""
    loss = part(partial(write_loss, page, x))
    before, *units, after = parts
    return Forward(page, before, tuple(units), after, loss)


def units_of(
    strategy: Strategy, num_layers: int, is_whole: bool = False, num_first: int = 1
) -> list[tuple[int, Unit]]:  # fmt: skip
    """How often each unit of blocks happens: the first, the last, and those between, of which equal ones are one.

    The first is the last to need the tables that all share; the last one's output goes to the final norm and
    not to another block.

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


def write_unit(page: Page, unit: Unit, number: int, x: Value) -> Value:
    """The blocks of a unit in their regions, ``number`` being the first; drops x."""
    tape, strategy = page.tape, page.setup.recomputation
    for num_blocks, is_run_again in unit:
        page.rank.enter_blocks(number, num_blocks)
        run = partial(in_turn, page, num_blocks, number)
        if is_run_again:
            page.prefix = ""
            page.enter(f"blocks.{number}", "checkpoint")
            tape.rename(x, "block input")
            make_policy = partial(saving_policy, strategy) if strategy.saved_ops else None
            y = tape.checkpoint(
                run, x, *page.tables.values(), make_policy=make_policy, stops_early=strategy.stops_early
            )
        else:
            y = run(x)
        tape.drop(x)
        page.rank.leave_blocks(number)
        x, number = y, number + num_blocks
    return x


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


def in_turn(page: Page, num_blocks: int, number: int, x: Value, *_: Value) -> Value:
    """Blocks behind one another, each with parameters of its own; leaves x to the caller."""
    given = x
    for i in range(number, number + num_blocks):
        page.prefix = f"blocks.{i}."
        page.new_parameters += page.add_block()
        y = two_branches(page, x)
        if x is not given:
            page.tape.drop(x)
        x = y
    return x


def two_branches(page: Page, x: Value) -> Value:
    """x + attention(norm(x)), then the same with the MLP."""
    tape = page.tape
    n = norm(page, "norm_1", x)
    branch = attend(page, n)
    tape.drop(n)
    y = add(page, x, dropout(page, branch, "attention"))
    n = norm(page, "norm_2", y)
    branch = mlp(page, n)
    tape.drop(n)
    out = add(page, y, dropout(page, branch, "mlp"))
    tape.drop(y)
    return out


def embed(page: Page) -> Value:
    """Token ids to the first hidden state, and the tables that all blocks share."""
    tape, names = page.tape, page.names
    page.enter("embedding")
    ids = tape.make("b s", "int64", "token ids", "token embedding", "embedding", "randint")
    page.targets = tape.make("b s", "int64", op="randint")
    names += [ids, page.targets]
    page.rank.enter_model()
    x = embedding(page, "token_embedding", ids, "b s h")
    if "position_embedding.weight" in page.parameters:
        positions = tape.make("s", "int64", "positions", "position embedding", op="arange")
        names.append(positions)
        p = embedding(page, "position_embedding", positions, "s h")
        token_embedding, x = x, add(page, x, p)
        tape.drop(token_embedding)
    x = dropout(page, x, "embedding")
    if page.setup.attention == "stored":
        page.tables["causal mask"] = tape.make("s s", "bool", "causal mask", "every block", "shared", "triu_")
    if page.model.position == "rotary":
        page.tables |= rotary_tables(page)
    names += page.tables.values()
    return x


def embedding(page: Page, name: str, indices: Value, axes: str) -> Value:
    """A row of the table for every index."""
    table, width = page.parameters[f"{name}.weight"], page.model.hidden_size
    stages = embedding_backward_buffers(
        indices.count, table.count // width, width, dtype_bits(page.weight_dtype) // 8
    )
    return page.tape.run(
        "embedding", [table], axes, page.weight_dtype, keeps=[indices], scratch_bytes=page.highest(stages)
    )


def rotary_tables(page: Page) -> dict[str, Value]:
    """Cosines and sines of every angle, computed in float32."""
    tape, tables = page.tape, {}
    half, angles = tape.make("s d/2", "float32"), tape.make("s d", "float32")
    tape.drop(half)
    for name in ("cosines", "sines"):
        note = {"name": name, "kept_by": "every block", "section": "shared"}
        is_wide = page.dtype == "float32"
        wide = tape.make("s d", "float32", **note if is_wide else {})
        tables[name] = wide if is_wide else tape.make("s d", page.dtype, **note)
        if not is_wide:
            tape.drop(wide)
    tape.drop(angles)
    return tables


def write_loss(page: Page, x: Value) -> Value:
    """Final norm, head, mean cross-entropy, divided by the number of micro-batches; drops x."""
    tape = page.tape
    n = norm(page, "norm", x)
    page.enter("head")
    logits = linear(page, n, "head" if "head.weight" in page.parameters else "token_embedding")
    tape.drop(n)
    page.enter("loss")
    if page.setup.upcasts_logits and logits.dtype != "float32":
        narrow, logits = logits, tape.cast(logits, "float32")
        tape.drop(narrow)
    wide = logits  # a CPU's autocast casts for the whole of cross_entropy, CUDA's for log_softmax alone
    if page.setup.precision.uses_autocast and not page.is_cuda:
        wide = tape.cast(logits, "float32")
    log_p = softmax(page, "log_softmax", wide, "log-probabilities")
    extra = [("number of targets", "", log_p.dtype)]
    tape.rename(page.targets, "target ids")
    loss = tape.run("nll_loss", [log_p], "", log_p.dtype, keeps=[log_p, page.targets], extra=extra)
    if wide is not logits:
        tape.drop(wide)
    tape.drop(log_p, logits, x)
    mean = tape.run("div", [loss], "", loss.dtype, name="loss")
    tape.drop(loss)
    tape.note(mean.storage, "the training loop")
    page.rank.leave_model()
    return mean
