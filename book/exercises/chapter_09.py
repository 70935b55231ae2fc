"""The exercises of chapter 09: what a rank keeps, gathers and sends."""

from functools import cache

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from memkit.formula.parameters import block_parameters
from memkit.setup.layouts import Layout
from memkit.setup.models import LLAMA_2_7B
from memkit.setup.recipes import OptimizerConfig
from memkit.setup.training import TrainingSetup
from memkit.sharding.step import estimate_sharded
from memkit.sharding.traffic import step_traffic
from memkit.units import GIB, format_bytes

GB = 10**9
BLOCK_PARAMETERS = sum(parameter.count for parameter in block_parameters(LLAMA_2_7B))
LLAMA_2_7B_PARAMETERS = 6_738_415_616
ROOM_BYTES, MOST_RANKS = 76 * GIB, 8


def rank_bytes(num_parameters, stage, num_ranks):
    """Bytes at rest in the recipe of 2 + 2 + 12."""
    shares = [num_ranks if stage >= first else 1 for first in (3, 2, 1)]
    return sum(size * num_parameters / share for size, share in zip((2, 2, 12), shares, strict=True))


def _dividing(weights, gradients, states, sizes=(2, 2, 12)):
    """``rank_bytes`` with each part divided in the stages that are named for it."""

    def wrong(num_parameters, stage, num_ranks):
        divided = (stage in stages for stages in (weights, gradients, states))
        return sum(size * num_parameters / (num_ranks if is_cut else 1) for size, is_cut in zip(sizes, divided))

    return wrong


def moved(stage, micro_batches, syncs_each):
    """Traffic of a window in units of P."""
    return _moving()(stage, micro_batches, syncs_each)


def _moving(all_reduce=2, gathers=2, reduces=1, waits=True):
    """Traffic with other multiples of P; ``waits``: gradients held back are sent once."""

    def wrong(stage, micro_batches, syncs_each):
        times = 1 if waits and not syncs_each else micro_batches
        return all_reduce * times if stage == 0 else gathers * micro_batches + reduces * times

    return wrong


@cache
def peak_and_traffic(stage: int, dp_size: int) -> tuple[int, int]:
    """The peak of a rank and the bytes that it sends, for the run of exercise 9.6."""
    setup = TrainingSetup(
        model=LLAMA_2_7B, seq_len=2048, micro_batch_size=4, optimizer=OptimizerConfig(implementation="fused")
    )
    layout = Layout(stage=stage, dp_size=dp_size, param_dtype="bfloat16", reduce_dtype="float32")
    return estimate_sharded(setup, layout).for_step(2).peak_bytes, step_traffic(setup, layout).sent_bytes


def judge_layout(layout: object) -> str | None:
    """Whether a stage and a number of ranks fit, with the fewest ranks and then the least traffic."""
    if not (isinstance(layout, (tuple, list)) and len(layout) == 2 and all(type(n) is int for n in layout)):
        return f"{layout!r} is not a pair of whole numbers: (stage, ranks)."
    stage, ranks = layout
    if stage not in (2, 3) or ranks not in (1, 2, 4, 8):
        return f"(stage, ranks) = {stage}, {ranks}: take stage 2 or 3, and 1, 2, 4 or 8 ranks."
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
        id="9.1",
        title="At rest on sixteen",
        right=2 * 7 + 14 * 7 / 16,
        tolerance=0.007,
        accepted=(20, 20.1, 20.125),
        unit="GB",
        because="2 B × 7 B of weights stay whole; 14 B × 7 B ÷ 16 = 6.125 GB: together 20.125 GB.",
        mistakes=(
            (7.0, "That is stage 3: all 16 bytes are divided. Under stage 2 the weights stay whole."),
            (33.25, "That is stage 1: under stage 2 the gradients are shared out too."),
            (112.0, "That is DDP: nothing is divided."),
            (56.0, "The number that is often printed for stage 2 on 8 ranks. Divide part by part."),
            (6.125, "That is the shared part. The weights stand whole beside it."),
            (98.0, "You divided nothing of the 14 bytes, or took what is often printed for stage 1."),
            (14.0, "That is the whole weights alone, or stage 3 on 8 ranks. Add the shared part."),
            (26.25, "That is stage 2 on 8 ranks. Here are 16."),
            (19.25, "The gradients are missing: 14 bytes are divided, 2 of them the gradient's."),
            (98.875, "You divided the gradients alone. Stage 2 keeps what stage 1 shares out: the states too."),
        ),
    ),
    NumberExercise(
        id="9.2",
        title="A block that is whole",
        right=4 * BLOCK_PARAMETERS,
        tolerance=0.005,
        because="The buffer of the all-gather and the tensors copied out of it, 2 bytes a parameter each.",
        mistakes=(
            (2 * BLOCK_PARAMETERS, "The tensors alone. The gather's buffer stands until the next block has its own."),
            (8 * BLOCK_PARAMETERS, "Both are there, but in float32. The policy gathers in bfloat16."),
            (BLOCK_PARAMETERS, "That is the number of parameters; each has 2 bytes."),
            (BLOCK_PARAMETERS // 2, "You divided by 8. A gathered block is whole on every rank."),
            (BLOCK_PARAMETERS // 4, "That is the rank's share in bfloat16. The block is gathered."),
            (2 * LLAMA_2_7B_PARAMETERS, "That is the whole model. Blocks are gathered one at a time."),
            (6 * BLOCK_PARAMETERS, "Three copies stand for an instant only, until the last block's buffer goes."),
            (2 * BLOCK_PARAMETERS + BLOCK_PARAMETERS // 4, "The buffer is whole too: an all-gather fills all of it."),
            (7 * BLOCK_PARAMETERS // 2, "Seven eighths come over the wire; the rank's own eighth stands here as well."),
            (16 * BLOCK_PARAMETERS, "16 bytes a parameter are the states at rest. What is gathered are weights."),
        ),
    ),
    FunctionExercise(
        id="9.3",
        title="The three stages",
        right=rank_bytes,
        probes=((7 * GB, 0, 8), (7 * GB, 1, 8), (7 * GB, 2, 8), (7 * GB, 3, 8), (10**9, 2, 64), (10**9, 3, 1)),
        tolerance=1e-6,
        because="38.5, 26.25 and 14.0 GB for 7 billion parameters on 8 ranks.",
        mistakes=(
            (
                lambda num_parameters, stage, num_ranks: 16 * num_parameters / (num_ranks if stage else 1),
                "Stages 1 and 2 divide only a part of the 16 bytes.",
            ),
            (
                lambda num_parameters, stage, num_ranks: 16 * num_parameters / {0: 1, 1: 4, 2: 8, 3: num_ranks}[stage],
                "4× and 8× are limits for many ranks, and not what 8 ranks save.",
            ),
            (
                lambda num_parameters, stage, num_ranks: {0: 16, 1: 14, 2: 8, 3: 2}[stage] * num_parameters,
                "The table that is often printed: its stages 1 and 2 are not ZeRO's.",
            ),
            (_dividing((), (), (1, 2, 3)), "Only the optimizer's 12 bytes are divided, also in stages 2 and 3."),
            (
                _dividing((3,), (2, 3), (1, 2, 3), sizes=(2, 2, 8)),
                "The master copy is missing: the optimizer has 4 + 4 + 4 bytes.",
            ),
            (
                _dividing((3,), (2, 3), ()),
                "Stage 1 divides nothing, and the optimizer's states stay whole in all stages.",
            ),
            (_dividing((3,), (2,), (1,)), "A stage shares out what the stages before it do, and one part more."),
            (_dividing((3,), (3,), (1, 2, 3)), "Your stage 2 is stage 1: it shares out the gradients too."),
            (
                lambda num_parameters, stage, num_ranks: 16 * num_parameters / num_ranks,
                "Only stage 3 divides all 16 bytes; DDP, stage 0, divides none.",
            ),
            (
                _dividing((), (3,), (2, 3)),
                "Each part is shared out one stage too late: the states from stage 1 on, not after it.",
            ),
            (
                _dividing((3,), (2, 3), (1, 2, 3), sizes=(4, 4, 8)),
                "That is the recipe 4 + 4 + 8, all in float32. The one asked for is 2 + 2 + 12.",
            ),
            (
                lambda num_parameters, stage, num_ranks: rank_bytes(num_parameters, stage, num_ranks) / GB,
                "Right in GB. The answer is in bytes.",
            ),
        ),
    ),
    FunctionExercise(
        id="9.4",
        title="Repair: the traffic of a window",
        right=moved,
        probes=((0, 1, True), (0, 4, True), (0, 4, False), (3, 1, True), (3, 4, True), (3, 4, False)),
        tolerance=1e-9,
        because="Gradients can wait for the last micro-batch; weights are gathered twice in each.",
        mistakes=(
            (_moving(waits=False), "The broken version: without sync the gradients go once."),
            (
                lambda stage, micro_batches, syncs_each: (
                    (2 if stage == 0 else 3) * (micro_batches if syncs_each else 1)
                ),
                "no_sync holds gradients back. Stage 3 gathers the weights for each micro-batch all the same.",
            ),
            (
                _moving(all_reduce=1, waits=False),
                "An all-reduce moves its bytes twice: it reduces, and gathers what is reduced.",
            ),
            (
                lambda stage, micro_batches, syncs_each: (
                    2 * (micro_batches if syncs_each else 1) if stage == 0 else 2 + (micro_batches if syncs_each else 1)
                ),
                "You gather the weights once a window. They are freed after each block.",
            ),
            (_moving(gathers=1), "You gather once a micro-batch. The backward gathers again."),
            (_moving(all_reduce=1), "Stage 3 is right. Under DDP an all-reduce moves its bytes twice."),
            (_moving(reduces=2), "A reduce-scatter moves its bytes once. Twice is an all-reduce, DDP's."),
            (
                lambda stage, micro_batches, syncs_each: moved(stage, micro_batches, not syncs_each),
                "You took syncs_each the other way round: True sends gradients after each micro-batch.",
            ),
            (
                lambda stage, micro_batches, syncs_each: moved(stage, micro_batches, syncs_each or stage == 0),
                "Stage 3 is right. Under DDP too gradients that are held back go once.",
            ),
            (
                lambda stage, micro_batches, syncs_each: 2 if stage == 0 else 3 * micro_batches,
                "With syncs_each DDP sends its gradients after every micro-batch; without, stage 3 reduces once.",
            ),
            (
                lambda stage, micro_batches, syncs_each: 2 * micro_batches if stage == 0 else 2 * micro_batches + 1,
                "syncs_each changes nothing in yours: it says how often the gradients go.",
            ),
            (
                _moving(gathers=0, reduces=2),
                "Stage 3 moves weights too: gathered in the forward and in the backward of each micro-batch.",
            ),
            (
                lambda stage, micro_batches, syncs_each: (
                    (2 if stage == 0 else 3) * micro_batches if syncs_each else 2 if stage == 0 else 2 * micro_batches
                ),
                "Held back is not left out: under stage 3 too the gradients are reduced once, after the last.",
            ),
        ),
    ),
    ChoiceExercise(
        id="9.5",
        title="More ranks, still out of memory",
        right="c",
        accepted=("C", "(c)", "c.", "c)"),
        because="At 64 ranks the activations are nearly all of the peak, and no stage shares them out.",
        mistakes=(
            ("a", "From 64 to 512 ranks a share shrinks from little to less. Look at the last bars of the explorer."),
            ("b", "Stage 2 keeps more, not less: the whole weights through the step."),
            ("d", "Offload moves the shares, of which a rank of 64 has 1.6 GiB. What fills the rest?"),
        ),
    ),
    JudgedExercise(
        id="9.6",
        title="The fewest ranks, then the least traffic",
        judge=judge_layout,
        because="Where both stages fit on as many ranks, the weights may as well stay gathered.",
    ),
    NumberExercise(
        id="9.7",
        title="Between the nodes",
        right=4 * LLAMA_2_7B_PARAMETERS // 8,
        tolerance=0.01,
        accepted=(3.37e9, 3.4e9),
        because="Each rank all-reduces its own eighth of the gradient with its likes: 4 B × 6,738,415,616 ÷ 8.",
        mistakes=(
            (4 * LLAMA_2_7B_PARAMETERS, "The whole gradient crosses under DDP. Here it was reduced to shares first."),
            (2 * LLAMA_2_7B_PARAMETERS // 8, "Your gradients have 2 bytes; they are reduced in float32."),
            (
                LLAMA_2_7B_PARAMETERS // 8,
                "Two ways lead there: a share's gradients without their 4 bytes; or division by 32, not by 8.",
            ),
            (LLAMA_2_7B_PARAMETERS, "You divided by the four nodes; or counted gradients, and did not divide."),
            (2 * LLAMA_2_7B_PARAMETERS // 32, "Two slips: an eighth and not a 32nd, and 4 bytes a gradient."),
            (12 * LLAMA_2_7B_PARAMETERS, "3 P is what moves inside a node under stage 3."),
            (2 * LLAMA_2_7B_PARAMETERS, "The whole gradient, in bfloat16: it is an eighth, in float32."),
            (4 * LLAMA_2_7B_PARAMETERS * 7 // 8, "What is sent inside a node. Asked is what goes between the nodes."),
            (
                2 * 4 * LLAMA_2_7B_PARAMETERS // 8 * 3 // 4,
                "What a ring of four sends for it: twice three quarters. Asked is the tensor that is all-reduced.",
            ),
            (4 * LLAMA_2_7B_PARAMETERS // 8 * 3 // 4, "Three quarters of what is all-reduced. Asked is all of it."),
        ),
    ),
)
