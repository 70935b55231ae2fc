"""The exercises of chapter 01: where the bytes of a training step go."""

from dataclasses import replace

from memkit.estimate import estimate_memory
from memkit.exercises import ChoiceExercise, FunctionExercise, Mistake, NumberExercise
from memkit.hardware import CARDS
from memkit.models import LLAMA_2_7B, LLAMA_3_8B
from memkit.params import count_parameters
from memkit.recipes import PURE_BF16, OptimizerConfig
from memkit.training import TrainingSetup
from memkit.units import GIB

CONTEXT_BYTES = 2 * GIB


def llama_parameters(h: int, L: int, v: int, k: int, f: int) -> int:
    """Parameters of a Llama-style model with a head of its own."""
    return 2 * v * h + L * (2 * h * h + 2 * h * k + 3 * h * f + 2 * h) + h


def block_activation_bytes(b: int, s: int, h: int, a: int) -> int:
    """Korthikanti et al. 2022, one block: sbh(34 + 5as/h)."""
    attention, mlp, norms, per_score = 11, 19, 4, 2 + 1 + 2
    return (attention + mlp + norms) * s * b * h + per_score * a * s**2 * b


def smallest_batch_past_the_optimizer() -> int:
    """First micro-batch of Llama-3-8B, as exercise 1.5 sets it up, whose peak in step 2 is not in the optimizer's step."""
    setup = TrainingSetup(model=LLAMA_3_8B, precision=PURE_BF16, seq_len=2048)
    while "optimizer" in estimate_memory(setup).for_step(2).peak.name:
        setup = replace(setup, micro_batch_size=setup.micro_batch_size + 1)
    return setup.micro_batch_size


def largest_batch(room_bytes: int, **changes) -> int:
    """Largest micro-batch of Llama-3-8B, as exercise 1.6 sets it up, whose peak fits ``room_bytes``."""
    setup = TrainingSetup(
        model=LLAMA_3_8B, precision=PURE_BF16, optimizer=OptimizerConfig(implementation="fused"),
        seq_len=4096, recomputation="full",
    )  # fmt: skip
    setup = replace(setup, **changes)
    while estimate_memory(replace(setup, micro_batch_size=setup.micro_batch_size + 1)).peak_bytes <= room_bytes:
        setup = replace(setup, micro_batch_size=setup.micro_batch_size + 1)
    return setup.micro_batch_size


_P = count_parameters(LLAMA_2_7B)
_H100 = CARDS["H100 SXM"]

EXERCISES = (
    ChoiceExercise(
        id="1.1",
        title="What the batch moves",
        right="c",
        because="Only tensors with a b in their shape double, and those are activations.",
        mistakes=(
            Mistake(answer="a", diagnosis="Weights, gradients and states have the shape of the parameters."),
            Mistake(answer="b", diagnosis="A gradient has the shape of its parameter: no b in it."),
            Mistake(answer="d", diagnosis="That is the sequence with stored scores. The batch is a single factor."),
        ),
    ),
    NumberExercise(
        id="1.2",
        title="States of a 7B model",
        right=8 * _P,
        because="Two float32 means for each parameter, 4 bytes each.",
        mistakes=(
            Mistake(answer=16 * _P, diagnosis="You counted weights and gradients too. The states alone are half."),
            Mistake(answer=12 * _P, diagnosis="You counted a master copy. In float32 training the weights are it."),
            Mistake(answer=4 * _P, diagnosis="You counted one mean. AdamW keeps two: of the gradient and its square."),
        ),
    ),
    FunctionExercise(
        id="1.3",
        title="Count a Llama",
        right=llama_parameters,
        probes=((4096, 32, 32000, 4096, 11008), (4096, 32, 128256, 1024, 14336)),
        because="It gives Llama-2-7B's 6,738,415,616 and Llama-3-8B's 8,030,261,248.",
        mistakes=(
            Mistake(
                answer=lambda h, L, v, k, f: llama_parameters(h, L, v, k, f) - v * h,
                diagnosis="One table of v times h is missing: token embedding and head are two tensors here.",
            ),
            Mistake(
                answer=lambda h, L, v, k, f: llama_parameters(h, L, v, h, f),
                diagnosis="You made keys and values as wide as the queries. Their width is k.",
            ),
            Mistake(
                answer=lambda h, L, v, k, f: llama_parameters(h, L, v, k, f) - L * h * f,
                diagnosis="You gave the MLP two matrices. A gated MLP has three: gate, up and down.",
            ),
            Mistake(
                answer=lambda h, L, v, k, f: llama_parameters(h, L, v, k, f) - L * 2 * h - h,
                diagnosis="The norms are missing: two vectors of h in each block, and one at the end.",
            ),
            Mistake(
                answer=lambda h, L, v, k, f: llama_parameters(h, L, v, k, f) - h,
                diagnosis="One norm is missing: the one after the last block.",
            ),
        ),
    ),
    FunctionExercise(
        id="1.4",
        title="Mend a printed estimator",
        right=block_activation_bytes,
        probes=((8, 1024, 1280, 20), (1, 2048, 4096, 32)),
        because="Two norms, two linear inputs, q, k, v, three score tensors and the MLP: 34 and 5.",
        mistakes=(
            Mistake(
                answer=lambda b, s, h, a: b * a * s**2 * 2 + b * s * 4 * h * 2,
                diagnosis="This is the function as printed. One score tensor of three, one MLP tensor of two.",
            ),
            Mistake(
                answer=lambda b, s, h, a: 34 * s * b * h,
                diagnosis="The score term is missing. That is right for flash attention, not for stored scores.",
            ),
            Mistake(
                answer=lambda b, s, h, a: 34 * s * b * h + 2 * a * s**2 * b,
                diagnosis="You kept one tensor of scores. Dropout keeps two more: its mask and its output.",
            ),
            Mistake(
                answer=lambda b, s, h, a: 34 * s * b * h + 4 * a * s**2 * b,
                diagnosis="The dropout mask of the scores is missing, one byte a score.",
            ),
            Mistake(
                answer=lambda b, s, h, a: 66 * s * b * h + 9 * a * s**2 * b,
                diagnosis="These are float32 activations. The question has 16-bit values.",
            ),
        ),
    ),
    NumberExercise(
        id="1.5",
        title="Where the peak moves",
        right=smallest_batch_past_the_optimizer(),
        unit="sequences",
        because="From here on activations at the start of the backward outweigh the optimizer's temporaries.",
        mistakes=(
            Mistake(
                answer=smallest_batch_past_the_optimizer() - 1,
                diagnosis="At this micro-batch the peak is still in the optimizer's step. The next one is it.",
            ),
        ),
    ),
    NumberExercise(
        id="1.6",
        title="Fill a card",
        right=largest_batch(_H100.memory_bytes - CONTEXT_BYTES),
        unit="sequences",
        because="One more and the logits and their gradient no longer fit beside weights and states.",
        mistakes=(
            Mistake(
                answer=largest_batch(_H100.memory_bytes - CONTEXT_BYTES, recomputation="none"),
                diagnosis="This is the answer without recomputation. Set recomputation='full'.",
            ),
        ),
    ),
    ChoiceExercise(
        id="1.7",
        title="Dead in the second step",
        right="c",
        because="Step 1 runs its forward without them; step 2 has them from the start.",
        mistakes=(
            Mistake(answer="a", diagnosis="Possible in general, but equal shapes find their old blocks again."),
            Mistake(answer="b", diagnosis="zero_grad frees them by default. They are gone before step 2 begins."),
            Mistake(answer="d", diagnosis="The batch has the same shape, so its activations have the same bytes."),
        ),
    ),
)
