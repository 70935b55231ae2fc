"""The exercises of chapter 04: what recomputation keeps and what it costs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from memkit.formula.activations import block_ledger
from memkit.formula.model import model_of
from memkit.models import GPT2_LARGE, LLAMA_3_8B, llama_config
from memkit.recipes import PURE_BF16
from memkit.recomputation import step_flops
from memkit.setup import TrainingSetup
from memkit.strategies import FULL, TORCH_NAMES, policy

BUDGET_SBH = 18
SMALL_LLAMA = TrainingSetup(
    model=llama_config("small Llama", 2, 256, 4, 1, 896, 512, 512), precision=PURE_BF16, seq_len=512
)


def peak_of_groups(L: int, g: int, block: int, x: int) -> int:
    """L blocks in groups of g: one input of x bytes a group, and one group's blocks in memory at a time."""
    return ceil(L / g) * x + g * block


def named(op: object) -> object:
    """The name of one of ``torch.ops.aten`` as a strategy has it; anything else as it is."""
    torch_name = str(op).removeprefix("aten.").partition(".")[0]
    known = [name for name, torch_names in TORCH_NAMES.items() if torch_name in torch_names]
    return known[0] if known and not isinstance(op, str) else op


def judge_list(ops: object) -> str | None:
    """Whether a list of operations keeps the products of a GPT-2 block and leaves the cheap operations out."""
    if isinstance(ops, str):
        return f"{ops!r} is one name. The answer is a list of names, such as ['mm', 'attention']."
    names = [named(op) for op in ops] if isinstance(ops, (list, tuple, set)) else [None]
    if not all(isinstance(name, str) for name in names):
        return f"{ops!r} is not a list of names in quotes, such as ['mm', 'attention']."
    ops = names
    if not ops:
        return "An empty list keeps nothing of a block but its input: that is full recomputation."
    try:
        strategy = policy("yours", *ops)
    except ValueError as error:
        return str(error) if str(error).endswith("?") else f"{error}."
    setup = TrainingSetup(model=GPT2_LARGE, precision=PURE_BF16)
    if "mm" in ops and "addmm" not in ops:
        return "You still save mm. A linear layer with a bias is dispatched as addmm, so this list keeps none of them."
    if "gelu" in ops:
        return "You save the output of gelu: 8 sbh more, and it costs no product to compute again."
    if step_flops(setup, strategy).recomputed:
        block = model_of(replace(setup, model=setup.model.one_block)).graph.operations
        again = [op for op in block if op.unit == 1 and op.flops and op.kind not in ops]
        names = sorted(op.kind if op.kind == "attention" else op.name for op in again)
        return f"These still run again: {', '.join(names)}."
    return None


@dataclass(frozen=True, kw_only=True)
class PolicyBill:
    """What a policy keeps, in sbh a layer with the input, and the share of full recomputation's FLOPs it runs again."""

    kept_sbh: float
    share_again: float

    def __str__(self) -> str:
        runs = f"runs {self.share_again:.0%} of full recomputation's FLOPs again"
        return f"keeps {self.kept_sbh:.1f} sbh a layer and {runs}"


@lru_cache(maxsize=32)
def bill_of(make_policy: Callable[[], Callable]) -> PolicyBill:
    """A policy's bytes and FLOPs on a small Llama, traced and counted."""
    from torch.utils.flop_counter import FlopCounterMode

    from memkit.program.transformer import strategy_build
    from memkit.tracing.trace import trace_memory

    setup, sbh = SMALL_LLAMA, SMALL_LLAMA.seq_len * SMALL_LLAMA.model.hidden_size

    def stored(how) -> int:
        return (
            trace_memory(strategy_build(setup, FULL, make_policy=how), steps=1)
            .at("forward")
            .activations
        )

    full = step_flops(setup, FULL)
    with FlopCounterMode(display=False) as counter:
        trace_memory(strategy_build(setup, FULL, make_policy=make_policy), steps=1)
    more = counter.get_total_flops() - full.total
    return PolicyBill(
        kept_sbh=2 + (stored(make_policy) - stored(None)) / setup.model.num_layers / sbh,
        share_again=(full.recomputed + more) / full.recomputed,
    )


def judge_policy(make_policy: object) -> str | None:
    """Whether a policy stays in the budget of bytes and runs little again."""
    if not callable(make_policy):
        return f"{make_policy!r} is a {type(make_policy).__name__}; the answer is a function that returns a policy."
    try:
        made = make_policy()
    except TypeError as error:
        if "argument" in str(error):
            return "make_policy is called without arguments. Is it the policy itself? It has to return one."
        raise
    if made is None or not callable(made):
        return "make_policy() returned no function. It has to return the policy."
    bill = bill_of(make_policy)
    if bill.kept_sbh > BUDGET_SBH:
        return f"Your policy {bill}. The budget is {BUDGET_SBH} sbh."
    if bill.kept_sbh < 2.1:
        return f"Your policy saves nothing: it {bill}. That is full recomputation; the budget leaves 16 sbh to use."
    if bill.share_again > 0.5:
        return f"Your policy {bill}. At most half may run again, and the budget leaves room to save more."
    return None


EXERCISES = (
    NumberExercise(
        id="4.1",
        letters={"L": 24, "S": 4},
        formula="L - L // S",
        unit="layers",
        because="The last of the {S} segments keeps everything, as its backward comes at once.",
        table="""
        L :: You ran all segments again. The last one is never checkpointed.
        L // S :: That is one segment, the one that runs once.
        S - 1 :: {S - 1} segments run again. How many layers are in them?
        S :: {S} is the number of segments; the question asks for layers.
        L - 2 * (L // S) :: That is {S - 2} of the {S} segments. Only one is spared.
        L - 1 :: You spared the last layer. What is spared is the last segment, of {L // S}.
        L - S :: You took segments of {S} layers. There are {S} segments of {L // S}.
        """,
    ),
    NumberExercise(
        id="4.2",
        letters={
            "model": LLAMA_3_8B,
            "s": 8192,
            "L": "model.num_layers",
            "h": "model.hidden_size",
            "ledger": lambda model, s: block_ledger(
                TrainingSetup(model=model, precision=PURE_BF16, seq_len=s)
            ),
            "kept": "round(ledger(model, s).per_sbh)",
            "or_tokens": "', or the tokens for the hidden size' if s == 2 * h else ''",
        },
        formula="L * 2 * s * h",
        tolerance=0.03,
        because="One block input of 2 bytes a value in each of {L} layers: {L * 2 * s * h:,} B.",
        table="""
        L * s * h :: That is the number of values kept. In bfloat16 each has 2 bytes.
        L * kept * s * h :: {kept} sbh is what this block keeps without recomputation. Full recomputation keeps 2.
        L * 2 * s :: You left out the hidden size: a token has {h:,} values.
        L * 2 * h :: That is one token. There are {s:,}.
        L * 4 * s * h :: You took 4 bytes a value{or_tokens}. In bfloat16 the block's input has 2.
        2 * s * h :: That is one layer. Every layer keeps its input.
        L * 34 * s * h :: 34 sbh is the paper's block without recomputation. Full recomputation keeps 2.
        L * 32 * s * h :: 32 sbh is GPT-2's block without recomputation. Full recomputation keeps 2.
        L * 2 * s * h // 8 :: An eighth: you took {s // 8:,} tokens for {s:,}, or divided bytes by 8 as if they were
            bits.
        L * 2 * s * model.intermediate_size :: You took the width inside the MLP. A block's input is as wide as the
            hidden size.
        """,
    ),
    FunctionExercise(
        id="4.3",
        letters={"ceil": ceil},
        right=peak_of_groups,
        probes=((36, 1, 32, 2), (36, 6, 32, 2), (36, 7, 32, 2)),
        because="Smallest near √(2L/32), 1.5 for L = 36. Chen's √L holds where a block is as large as its input.",
        table="""
        ceil(L / g) * x + L * block :: You kept all blocks at once. The backward rebuilds one group at a time.
        L * x + g * block :: You kept an input for every layer. A group keeps one for all its layers.
        ceil(L / g) * x + block :: You rebuilt one block at a time. A group is rebuilt whole before its backward.
        L / g * x + g * block :: 36 blocks in groups of 7 are not 5.14 groups: the last, shorter one needs its input
            too.
        g * x + ceil(L / g) * block :: You took g for the number of groups. It is the number of blocks in one.
        g * x + L / g * block ; g * x + L // g * block :: You took g for the number of groups. It is the number of
            blocks in one, and the number of groups is rounded up.
        2 * L**0.5 * block ; 2 * L**0.5 * x :: That is Chen's smallest sum, for the best g and for a block as large as
            its input. Here g is given, and the two sizes differ.
        L**0.5 * (x + block) :: You took √L groups of √L blocks. Here g is given.
        max(ceil(L / g) * x, g * block) :: You took the larger of the two. The inputs stay while a group's blocks
            are in memory: add them.
        ceil(L / g) * x :: You left out the blocks. The g blocks of one group are in memory during its backward.
        g * block :: You left out the inputs. One for each group stays until its turn comes.
        ceil(L / g) * (x + g * block) :: You kept the blocks of all groups at once. The backward rebuilds one
            group at a time.
        (ceil(L / g) - 1) * x + g * block :: You left out the rebuilt group's own input. The question counts one for
            every group.
        ceil(L / g) * x + (g - 1) * block :: You left out one block. A group of g is rebuilt whole before its
            backward.
        L // g * x + g * block :: You lost the last, shorter group: round the number of groups up.
        ceil(L / g) * x + g * block + g * x :: You added an input for every block of the rebuilt group. A block's bytes
            hold its input already.
        """,
    ),
    JudgedExercise(
        id="4.4",
        judge=judge_list,
        because="addmm and the attention kernel are all the products there are; the rest is cheap to run again.",
    ),
    ChoiceExercise(
        id="4.5",
        right="c",
        because="On 14 GiB it answers 'save every second product', on 16 GiB 'save attention and products'.",
        table="""
        a :: Without recomputation it runs out of memory on 14 GiB. Print the plan.
        b :: That is the answer for 16 GiB. With 2 GiB less it runs out of memory.
        d :: Full recomputation fits, but something cheaper does too.
        """,
    ),
    JudgedExercise(
        id="4.6",
        judge=judge_policy,
        score=lambda answer: f"Yours {bill_of(answer)}.",
        because=f"The budget was {BUDGET_SBH} sbh and half.",
    ),
    ChoiceExercise(
        id="4.7",
        right="b",
        because=(
            "The kernel keeps no scores. Its checkpoint would save only the log-sum-exp and run the kernel again."
        ),
        table="""
        a :: 70 % were the stored scores. A flash kernel keeps none.
        c :: Query, key and value stay: they are the inputs of the checkpoint.
        d :: It costs FLOPs: the whole kernel runs once more.
        """,
    ),
)
