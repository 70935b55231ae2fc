"""The exercises of lesson 11: what a rank keeps, gathers and sends, and when it hides."""

from functools import cache
from math import ceil

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from book.exercises.answers import whole
from memkit.formula.parameters import block_parameters, count_parameters
from memkit.models import LLAMA_2_7B, LLAMA_3_70B
from memkit.recipes import FUSED_ADAMW
from memkit.setup import TrainingSetup
from memkit.units import GIB, format_bytes
from stepscope.setup import Layout
from stepscope.sharding import estimate_sharded, step_traffic

BLOCK_PARAMETERS = sum(parameter.count for parameter in block_parameters(LLAMA_2_7B))
LLAMA_2_7B_PARAMETERS = 6_738_415_616
ROOM_BYTES = 76 * GIB


def rank_bytes(P, stage, n, sizes=(2, 4, 12), cut=(3, 2, 1)):
    """Bytes at rest of P parameters on one of n ranks: weights, gradients, states, each divided from a stage on."""
    return sum(
        size * P / (n if stage >= first else 1) for size, first in zip(sizes, cut, strict=True)
    )


def moved(stage, m, syncs_each, reduce=2, gathers=2, scatter=1):
    """Traffic of a window in units of P: DDP's all-reduces, or stage 3's gathers and reduce-scatters."""
    times = m if syncs_each else 1
    return reduce * times if stage == 0 else gathers * m + scatter * times


def hidden(F, B, g, r, again):
    """Tokens of a rank from which forward and backward hide their sending, by FLOPs and bytes a second, bytes gathered
    and reduced a parameter, and whether blocks run again."""
    return max(g / 2, (g + r) / (6 if again else 4)) * F / B


@cache
def peak_and_traffic(stage: int, dp_size: int) -> tuple[int, int]:
    """The peak of a rank and the bytes that it sends, for the run of exercise 11.6."""
    setup = TrainingSetup(model=LLAMA_2_7B, seq_len=2048, micro_batch_size=4, optimizer=FUSED_ADAMW)
    layout = Layout(stage=stage, dp_size=dp_size, param_dtype="bfloat16", reduce_dtype="float32")
    peak_bytes = estimate_sharded(setup, layout).for_step(2).peak_bytes
    return peak_bytes, step_traffic(setup, layout).sent_bytes


def judge_layout(layout: object) -> str | None:
    """Whether a stage and a number of ranks fit, with the fewest ranks and then the least traffic."""
    pair = tuple(map(whole, layout)) if isinstance(layout, (tuple, list)) else ()
    if not (len(pair) == 2 and all(type(n) is int for n in pair)):
        return f"{layout!r} is not a pair of whole numbers: (stage, ranks)."
    stage, ranks = pair
    if stage not in (2, 3) or ranks not in (1, 2, 4, 8):
        turned = " The stage comes first." if stage in (1, 2, 4, 8) and ranks in (2, 3) else ""
        return (
            f"(stage, ranks) = {stage}, {ranks}: take stage 2 or 3, and 1, 2, 4 or 8 ranks.{turned}"
        )
    peak, sent = peak_and_traffic(stage, ranks)
    if peak > ROOM_BYTES:
        return f"It peaks at {format_bytes(peak)} a rank; the room is {format_bytes(ROOM_BYTES)}."
    for fewer in (n for n in (1, 2, 4, 8) if n < ranks):
        if any(peak_and_traffic(other, fewer)[0] <= ROOM_BYTES for other in (2, 3)):
            return f"It fits, at {format_bytes(peak)}. So does a run on {fewer} ranks."
    if stage == 3 and peak_and_traffic(2, ranks)[0] <= ROOM_BYTES:
        less = peak_and_traffic(2, ranks)[1]
        return (
            f"It fits, at {format_bytes(peak)}, and sends {format_bytes(sent)} a step. The other stage fits on as many "
            f"ranks and sends {format_bytes(less)}."
        )
    return None


EXERCISES = (
    NumberExercise(
        id="11.1",
        letters={"P": 7},
        formula="2 * P + 14 * P / 16",
        unit="GB",
        tolerance=0.003,
        also=(20.1, 20.125),
        because="2 B × 7 B of weights stay whole; 14 B × 7 B ÷ 16 = 6.125 GB: together 20.125 GB.",
        table="""
        20 :: About right: give one digit after the point.
        16 * P / 16 :: That is stage 3: all 16 bytes are divided. Under stage 2 the weights stay whole.
        4 * P + 12 * P / 16 :: That is stage 1: under stage 2 the gradients are divided too.
        16 * P :: That is DDP: nothing is divided.
        8 * P :: The number that you may read for stage 2 on 8 ranks. Divide part by part.
        14 * P / 16 :: That is the divided part. The whole weights come on top.
        14 * P :: You divided nothing of the 14 bytes, or took what you may read for stage 1.
        2 * P :: That is the whole weights alone, or stage 3 on 8 ranks. Add the divided part.
        2 * P + 14 * P / 8 :: That is stage 2 on 8 ranks. Here are 16.
        4 * P + 12 * P / 8 :: That is stage 1, and on 8 ranks.
        12 * P / 16 :: Those are the states alone. Weights and gradients take memory too.
        4 * P :: Weights and gradients, both whole. Stage 2 divides the gradients, and the states come on top.
        2 * P + 12 * P / 16 :: The gradients are missing: 14 bytes are divided, 2 of them the gradient's.
        14 * P + 2 * P / 16 :: You divided the gradients alone. Stage 2 also divides what stage 1 does: the states.
        """,
    ),
    NumberExercise(
        id="11.2",
        letters={"block": BLOCK_PARAMETERS, "model": LLAMA_2_7B_PARAMETERS},
        formula="4 * block",
        tolerance=0.005,
        because="The buffer of the all-gather and the tensors copied out of it, 2 bytes a parameter each.",
        table="""
        2 * block :: The tensors alone. The gather's buffer is kept until the next block has its own.
        8 * block :: Both are there, but in float32. The policy gathers in bfloat16.
        block :: That is the number of parameters; each has 2 bytes.
        block // 2 :: You divided by 8. A gathered block is whole on every rank.
        block // 4 :: That is the rank's share in bfloat16. The block is gathered.
        2 * model :: That is the whole model. Blocks are gathered one at a time.
        6 * block :: There are three copies for an instant only, until the last block's buffer is freed.
        2 * block + block // 4 :: The buffer is whole too: an all-gather fills all of it.
        7 * block // 2 :: Seven eighths come over the wire; the rank's own eighth is in the buffer as well.
        16 * block :: 16 bytes a parameter are the states at rest. What is gathered are weights.
        """,
    ),
    FunctionExercise(
        id="11.3",
        letters={"at_rest": rank_bytes},
        right=rank_bytes,
        tolerance=1e-6,
        probes=(*((7 * 10**9, stage, 8) for stage in range(4)), (10**9, 2, 64), (10**9, 3, 1)),
        because="52.5, 28.0 and 15.75 GB for 7 billion parameters on 8 ranks.",
        table="""
        18 * P / (n if stage else 1) :: Stages 1 and 2 divide only a part of the 18 bytes.
        18 * P / {0: 1, 1: 4, 2: 8, 3: n}[stage] :: 4× and 8× are limits for many ranks, and not what 8 ranks save.
        at_rest(P, stage, n, cut=(2, 3, 1)) :: You divided the weights in stage 2 and the gradients in stage 3, or gave
            each the other's bytes. Gradients have 4 bytes here, and are divided first.
        at_rest(P, stage, n, cut=(4, 4, 1)) :: Only the optimizer's 12 bytes are divided, also in stages 2 and 3.
        at_rest(P, stage, n, sizes=(2, 2, 12)) :: That is the recipe 2 + 2 + 12. Here a gradient has 4 bytes.
        at_rest(P, stage, n, sizes=(2, 4, 8)) :: The master copy is missing: the optimizer has 4 + 4 + 4 bytes.
        at_rest(P, stage, n, cut=(3, 2, 4)) :: Stage 1 divides nothing, and the optimizer's states stay whole in all
            stages.
        at_rest(P, stage, n, cut=(3, 2 if stage < 3 else 4, 1 if stage < 2 else 4)) :: A stage divides what the
            stages before it divide, and one part more.
        at_rest(P, stage, n, cut=(3, 3, 1)) :: Your stage 2 is stage 1. Stage 2 divides the gradients too.
        18 * P / n ; 18 * P / n if stage == 0 else at_rest(P, stage, n) :: Only stage 3 divides all 18 bytes; DDP,
            stage 0, divides none.
        at_rest(P, {1: 2, 2: 1}.get(stage, stage), n) :: Your stages 1 and 2 are exchanged. Stage 1 divides the states
            alone.
        at_rest(P, min(stage, 2), n) :: Stages 0 to 2 are right. Stage 3 divides the weights as well.
        at_rest(P, stage, n, cut=(4, 3, 2)) :: Each part is divided one stage too late: the states are divided from
            stage 1 on, not after it.
        at_rest(P, min(stage + 1, 3), n) :: What you give for a stage is the next one's. Stage 0 is DDP: all is whole.
        at_rest(P, stage, n, sizes=(4, 4, 8)) :: That is the recipe 4 + 4 + 8, all in float32. The one asked for is 2
            + 4 + 12.
        at_rest(P, stage, n) / 10**9 :: Right in GB. The answer is in bytes.
        """,
    ),
    FunctionExercise(
        id="11.4",
        letters={"moved": moved},
        right=moved,
        tolerance=1e-9,
        probes=(
            (0, 1, True),
            (0, 4, True),
            (0, 4, False),
            (3, 1, True),
            (3, 4, True),
            (3, 4, False),
        ),
        because="Gradients can wait for the last micro-batch; weights are gathered twice in each.",
        table="""
        moved(stage, m, True) :: This is still the broken version. With syncs_each=False the gradients are sent
            once.
        (2 if stage == 0 else 3) * (m if syncs_each else 1) :: no_sync holds gradients back. Stage 3 gathers the
            weights for each micro-batch all the same.
        moved(stage, m, True, reduce=1) :: An all-reduce moves its bytes twice: it reduces, and gathers what is
            reduced.
        2 * (m if syncs_each else 1) if stage == 0 else 2 + (m if syncs_each else 1) :: You gather the weights once a
            window. They are freed after each block.
        moved(stage, m, syncs_each, gathers=1) :: You gather once a micro-batch. The backward gathers again.
        moved(stage, m, syncs_each, reduce=1) :: Stage 3 is right. Under DDP an all-reduce moves its bytes twice.
        moved(stage, m, syncs_each, scatter=2) :: A reduce-scatter moves its bytes once. Twice is an all-reduce,
            DDP's.
        moved(stage, m, not syncs_each) :: You took syncs_each the other way round: True sends gradients after each
            micro-batch.
        moved(stage, m, syncs_each or stage == 3) :: DDP is right. Under stage 3 too, gradients that are held back are
            reduced once.
        moved(stage, m, syncs_each, gathers=2 if syncs_each else 1) :: Holding gradients back changes no gather: the
            weights are gathered twice in each micro-batch.
        moved(stage, m, syncs_each or stage == 0) :: Stage 3 is right. Under DDP too gradients that are held back go
            once.
        2 if stage == 0 else 3 * m :: With syncs_each DDP sends its gradients after every micro-batch; without, stage
            3 reduces once.
        2 if stage == 0 else 2 * m + 1 :: In yours the gradients always go once. With syncs_each=True they go after
            each micro-batch.
        moved(stage, m, syncs_each and stage == 0) :: DDP is right. With syncs_each=True stage 3 too reduces after
            each micro-batch.
        2 * m if stage == 0 else 2 * m + 1 :: syncs_each changes nothing in yours: it says how often the gradients go.
        moved(stage, m, syncs_each, gathers=0, scatter=2) :: Stage 3 moves weights too: gathered in the forward and in
            the backward of each micro-batch.
        (2 if stage == 0 else 3) * m if syncs_each else 2 if stage == 0 else 2 * m :: Held back is not left out: under
            stage 3 too the gradients are reduced once, after the last.
        """,
    ),
    ChoiceExercise(
        id="11.5",
        right="c",
        because="At 64 ranks the activations are nearly all of the peak, and no stage divides them.",
        table="""
        a :: From 64 to 512 ranks a share shrinks from little to less. Look at the last bars of the explorer.
        b :: Stage 2 keeps more, not less: the whole weights through the step.
        d :: Offload moves the shares, of which a rank of 64 has 1.6 GiB. What fills the rest?
        """,
    ),
    JudgedExercise(
        id="11.6",
        judge=judge_layout,
        because="Where both stages fit on as many ranks, the weights may as well stay gathered.",
    ),
    NumberExercise(
        id="11.7",
        letters={"P": LLAMA_2_7B_PARAMETERS},
        formula="4 * P // 8",
        tolerance=0.01,
        also=(3.37e9, 3.4e9),
        because="Each rank all-reduces its own eighth of the gradient between the nodes: 4 B × 6,738,415,616 ÷ 8.",
        table="""
        4 * P :: The whole gradient crosses under DDP. Here it was reduced to shares first.
        2 * P // 8 :: Your gradients have 2 bytes; they are reduced in float32.
        P // 8 :: A share's gradients without their 4 bytes each.
        4 * P // 24 :: You divided by all 24 ranks. Each node has reduced the gradient among its own eight.
        4 * P // 3 :: You divided by the three nodes. Each rank of a node has an eighth of the gradient.
        P :: You counted gradients, not bytes, and did not divide; or you counted both ways of the all-reduce.
        2 * P // 24 :: Two slips: an eighth and not a 24th, and 4 bytes a gradient.
        12 * P :: 3 M is what moves inside a node under stage 3.
        2 * P :: The whole gradient, in bfloat16: it is an eighth, in float32.
        4 * P * 7 // 8 :: What is sent inside a node. Asked is what goes between the nodes.
        2 * 4 * P // 8 * 2 // 3 :: What a ring of three sends for it: twice two thirds. Asked is the tensor that is
            all-reduced.
        4 * P // 8 * 2 // 3 :: Two thirds of what is all-reduced. Asked is all of it.
        """,
    ),
    NumberExercise(
        id="11.8",
        letters={
            "ceil": ceil,
            "P": count_parameters(LLAMA_3_70B),
            "GIB": GIB,
            "card": 39.39,
            "context": 1,
            "own": 12.21,
            "states": "16 * P / GIB",
            "room": "card - context - own",
            "cards": "ceil(states / room)",
        },
        formula="cards",
        unit="cards",
        also=(41.0,),
        because="{states:,.1f} GiB over {room:.2f} GiB a card are {states / room:.2f}: {cards} cards.",
        table="""
        cards - 1 :: You rounded down. {cards - 1} cards have {(cards - 1) * room:,.0f} GiB for {states:,.0f}.
        ceil(states / (card - context)) :: Is that with the activations of the one sequence added to the states, or
            without any? Each card keeps {own} GiB of its own sequence.
        ceil(states / (card - own)) :: You left the context in. It takes {context} GiB of each card.
        ceil(states / card) :: Context and activations take room on each card: take both off first.
        ceil(16 * P / 1e9 / room) :: Did you divide GB by GiB, or take the label of 40·10⁹ bytes? The card reports
            {card} GiB, and a GiB is 1.0737 GB.
        ceil(16 * P / 1e9 / (40 - context - own)) :: You took off GiB from the label in GB. The card reports {card} GiB.
        ceil(16 * P / 40e9) :: That is the states by the label alone. Context and activations take room on each card.
        ceil(2 * P / GIB / room) :: You counted the weights alone, in 16 bits. Training has 16 bytes per parameter.
        ceil(8 * P / GIB / room) :: You took 8 bytes per parameter, as in pure bf16. Here it is 16.
        ceil(18 * P / GIB / room) :: You took 18 bytes per parameter. Here it is 16.
        ceil(20 * P / GIB / room) :: You took 20 bytes per parameter. Here it is 16.
        16 :: That is for H100s of 80 GB. These cards are half as large.
        14 :: That is for cards of 80 GB, and for states alone.
        states / room ; round(states / room, 2) ; round(states / room, 1) :: That is right as a quotient. Cards come
            whole: round up.
        """,
    ),
    FunctionExercise(
        id="11.9",
        letters={"ceil": ceil, "hidden": hidden},
        right=hidden,
        tolerance=1e-9,
        probes=(
            (4e14, 370e9, 2, 4, False),
            (4e14, 370e9, 2, 4, True),
            (4e14, 370e9, 2, 2, True),
            (8e13, 28e9, 1, 4, False),
            (4e14, 47e9, 4, 1, True),
        ),
        because="Forward: gathered bytes ÷ 2; backward: gathered and summed bytes ÷ 4, or ÷ 6; the larger, times F/B.",
        table="""
        hidden(F, B, g, r, False) :: You left recomputation out: it gives the backward 6 FLOPs a parameter and token.
        hidden(F, B, 0, r, again) :: The weights are gathered again for the backward, and in the forward.
        g / 2 * F / B :: That is the forward alone, or a backward that sums no gradient. The backward must hide too.
        (g + r) / (6 if again else 4) * F / B :: That is the backward alone. Where little is summed the forward decides.
        (g / 2 + (g + r) / (6 if again else 4)) * F / B :: Forward and backward come one after the other, each with its
            own sending: take the larger and not the sum.
        (2 * g + r) / (8 if again else 6) * F / B :: That is the mean over the step. A gather of the forward cannot hide
            behind the backward.
        max(g, (g + r) / (3 if again else 2)) * F / B ; max(g / 1, (g + r) / (5 if again else 3)) * F / B :: How many
            FLOPs has a parameter for each token: 2 in the forward, 4 in the backward.
        max(g / (4 if again else 2), (g + r) / (6 if again else 4)) * F / B :: The forward stays as it is: what is
            recomputed runs in the backward.
        max(g / 2, (g + 2 * r) / (6 if again else 4)) * F / B :: A reduce-scatter moves its bytes once.
        1 / hidden(F, B, g, r, again) ; hidden(B, F, g, r, again) :: Upside down: a faster card needs more tokens, a
            faster link fewer.
        min(g / 2, (g + r) / (6 if again else 4)) * F / B :: Both must hide: take the larger.
        max(g / 2, max(g, r) / (6 if again else 4)) * F / B :: The backward sends both, weights and gradients: add
            their bytes.
        max(g / 2, ((2 * g if again else g) + r) / (6 if again else 4)) * F / B :: What is recomputed uses the weights
            that the backward gathers: they come once.
        ceil(hidden(F, B, g, r, again)) ; round(hidden(F, B, g, r, again)) :: Right, but rounded. The answer is not.
        """,
    ),
)
