"""The exercises of chapter 08: the moments of a run around its steps."""

import math
import tempfile
from collections.abc import Callable
from numbers import Real
from pathlib import Path

import torch
from torch import nn

from book.exercises import ChoiceExercise, FunctionExercise, JudgedExercise, NumberExercise
from memkit.units import GIB, MIB, format_bytes
from stepscope.small_card import SimulatedCard
from stepscope.tracing.trace import trace_script

# 8.2 An evaluation, run on a played card

WIDTH, WORDS = 64, 4096


@torch.no_grad()
def accuracy(net: nn.Module, batches: list) -> float:
    """The share of hits over all tokens of all batches."""
    hits = tokens = 0
    for x, y in batches:
        hits += (net(x).argmax(-1) == y).sum().item()
        tokens += y.numel()
    return hits / tokens


def held_out(net: nn.Module, count: int) -> list:
    """``count`` batches of 16 to 256 tokens; in the short ones nearly every target is what the net says."""
    batches = []
    for number in range(count):
        tokens = 16 if number % 2 else 256
        x = torch.randn(tokens, WIDTH)
        with torch.no_grad():
            y = net(x).argmax(-1)
        if tokens == 256:
            y[: 3 * tokens // 4] = 0
        batches.append((x, y))
    return batches


def judge_accuracy(answer: Callable) -> str | None:
    """Run the evaluation on 4 and on 16 batches of a played card; what grows is told by its size."""
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    net, above = nn.Sequential(*layers, nn.Linear(WIDTH, WORDS)), []
    for count in (4, 16):
        with SimulatedCard(4 * GIB) as card, torch.enable_grad():
            batches = held_out(net, count)
            peaks = []
            for function in (accuracy, answer):
                before = card.allocated_bytes
                card.reset_peak()
                given = function(net, batches)
                peaks.append(card.peak_allocated_bytes - before)
                if function is accuracy:
                    wanted = given
            can_train = torch.is_grad_enabled()
            above.append(peaks[1] - peaks[0])
        if isinstance(given, torch.Tensor):
            return "You returned a tensor, which stays on the card while one holds it. Return a number, with .item()."
        if not isinstance(given, Real):
            return f"You returned a {type(given).__name__}. Return a number, the share of hits."
        if not math.isclose(given, wanted, rel_tol=1e-4):
            return _wrong_share(given, net, batches)
        if not can_train:
            return "You left gradients switched off: after this nothing trains. Use torch.no_grad() for this alone."
    return _kept(above)


def _wrong_share(given: float, net: nn.Module, batches: list) -> str:
    """Which share it is, if it is not the one over all tokens."""
    shares = [accuracy(net, [batch]) for batch in batches]
    if math.isclose(given, sum(shares) / len(shares), rel_tol=1e-4):
        return "That is the mean of the batches' means: a short batch weighs as much as a long one. Count tokens."
    if math.isclose(given, shares[-1], rel_tol=1e-4):
        return "That is the share of the last batch alone."
    wanted = accuracy(net, batches)
    tokens = sum(y.numel() for _, y in batches)
    if math.isclose(given, wanted * tokens, rel_tol=1e-4):
        return "That is the number of hits. Divide by the number of tokens."
    if math.isclose(given, 1 - wanted, rel_tol=1e-4):
        return "That is the share of misses."
    return f"The share of hits is {wanted:.4f}; yours is {given:.4f}."


def _kept(above: list[int]) -> str | None:
    """What an evaluation keeps, from its peaks above a right one's for 4 and for 16 batches, half of them long."""
    tokens = 6 * (256 + 16)  # of the 12 batches more
    per_token = (above[1] - above[0]) / tokens
    grows = f"The peak grows by {format_bytes(round((above[1] - above[0]) / 12))} a batch: "
    if per_token > 1.5 * WORDS * 4:
        return grows + "the logits of every batch, and at the end once more where they are joined."
    if per_token > 0.5 * WORDS * 4:
        return grows + "the logits of every batch are kept."
    if per_token > 4:
        return (
            grows
            + "something of every token is kept, such as its class. Two numbers a batch are enough."
        )
    if above[1] > WIDTH * 256 * 4:
        return "It does not grow, but each forward keeps tensors for a backward that never comes. Use torch.no_grad()."
    return None


# 8.4 A job goes on


def stack() -> nn.Sequential:
    """Four linear layers, 4 MiB of float32 weights."""
    return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))


def trained(file: Path, device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A net after one step, and its optimizer; saved to ``file`` as the exercise says."""
    net = stack().to(device)
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 512, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    return net, optimizer


def judge_resume(answer: Callable) -> str | None:
    """Resume twice: with values, to compare them, and on a card without values, to count its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        diagnosis = _goes_on(answer, Path(folder, "values.pt"))
        if diagnosis:
            return diagnosis
        counted = {}
        trace_script(lambda: lambda: _count(answer, Path(folder, "card.pt"), counted), steps=1)
    if not counted["is_on_card"]:
        return (
            "After your function the weights are in the host's memory: the net has to stay on the card. "
            "Without assign=True load_state_dict copies into it."
        )
    over, left = counted["peak"] - counted["wanted"], counted["after"] - counted["wanted"]
    if left > MIB:
        return (
            f"Afterwards the card holds {format_bytes(left)} more than weights and states: "
            "something outside your function still has what the file brought."
        )
    if over > MIB:
        return (
            f"The card holds {format_bytes(over)} more than weights and states while you load: "
            "the file comes to the card. torch.load has map_location."
        )
    return None


def _goes_on(answer: Callable, file: Path) -> str | None:
    """Whether net and optimizer go on where those in ``file`` were."""
    old, old_optimizer = trained(file, "cpu")
    net = stack()
    optimizer = torch.optim.AdamW(net.parameters())
    answer(file, net, optimizer)
    pairs = list(zip(net.parameters(), old.parameters(), strict=True))
    if not all(torch.equal(*pair) for pair in pairs):
        return "The net has not the weights of the file."
    if not optimizer.state:
        return "The optimizer has no states: it would start again at step 1. Load them too."
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if own != {id(parameter) for parameter in net.parameters()}:
        return (
            "The optimizer steps tensors that are no longer the net's: assign=True has put others in their place. "
            "The next step would train nothing."
        )
    for new, before in pairs:
        mine, theirs = optimizer.state[new], old_optimizer.state[before]
        if not torch.equal(mine["exp_avg_sq"], theirs["exp_avg_sq"]):
            return "The optimizer has not the states of the file."
    return None


def _count(answer: Callable, file: Path, counted: dict) -> None:
    """On a traced card: bytes at the highest moment and afterwards, and what they should be."""
    trained(file, "cuda")
    net = stack().to("cuda")
    optimizer = torch.optim.AdamW(net.parameters())
    states_bytes = 2 * sum(p.nbytes for p in net.parameters())
    counted["wanted"] = torch.cuda.memory_allocated() + states_bytes
    torch.cuda.reset_peak_memory_stats()
    kept = answer(file, net, optimizer)
    counted["peak"] = torch.cuda.max_memory_allocated()
    counted["after"] = torch.cuda.memory_allocated()
    counted["is_on_card"] = all(parameter.is_cuda for parameter in net.parameters())
    del kept  # what the function returned was held till here, as a reader's program may


# 8.6


def highest(params: int, step_logits: int, sequences: int, tokens: int, words: int) -> int:
    """Bytes at the highest of load, step and evaluation."""
    load = 2 * 4 * params
    step = max(16 * params, 12 * params + step_logits)
    evaluation = 12 * params + 2 * sequences * tokens * words * 4
    return max(load, step, evaluation)


EXERCISES = (
    NumberExercise(
        id="8.1",
        letters={
            "sequences": 40,
            "tokens": 1024,
            "words": 128_256,
            "once": "sequences * tokens * words * 4 / 2**30",
        },
        formula="2 * once",
        unit="GiB",
        tolerance=0.002,
        because="Old and new stand together at each join: twice the set, in float32.",
        table="""
        once :: That is the set once. While the last batch is joined, the old tensor stands beside the new one.
        once / 2 :: That is the set once, and in bf16. Accelerate converts what the model returns to float32.
        2 * once * 39 / 40 ; once * 79 / 40 :: Close: at the last join there are 39 old sequences, 1 new one and 40
            joined.
        3 * once :: There are never three sets: 39 old sequences, 1 new one, and 40 joined.
        2 * once * 2**30 / 10**9 :: That is GB of 10⁹ bytes. Give GiB.
        2 * once / sequences ; once / sequences :: That is what one sequence has. Kept are all 40.
        2 * sequences * words * 4 / 2**30 ; sequences * words * 4 / 2**30 :: The tokens are missing: a row of logits
            for each.
        """,
    ),
    JudgedExercise(
        id="8.2",
        judge=judge_accuracy,
        because="Two numbers a batch are kept, and its peak is that of one batch.",
    ),
    NumberExercise(
        id="8.3",
        letters={"weights": 4.8, "ranks": 4, "file": "3 * weights"},
        formula="weights + ranks * file",
        unit="GB",
        tolerance=0.002,
        because="Its own weights, and a file of three times their size from each of four ranks.",
        table="""
        ranks * file :: Its own weights are missing: 4.8 GB more.
        weights + file :: That is one rank's file. The three others loaded theirs onto card 0 too, where it was saved.
        ranks * (weights + file) :: Card 0 has one rank's model. The other models are on their own cards.
        weights + ranks * weights :: A file has both states too, each as large as the weights.
        weights + ranks * 2 * weights :: A file has the weights and two states.
        weights + ranks * 4 * weights :: There are no gradients in the file: weights and two states.
        file :: That is one file, without the model.
        weights :: That is the model alone. Where do the files go?
        (weights + ranks * file) / 2 :: Float32 has 4 bytes: 1.2 billion parameters are 4.8 GB.
        (weights + ranks * file) * 10**9 / 2**30 :: That is GiB. Give GB.
        """,
    ),
    JudgedExercise(
        id="8.4",
        judge=judge_resume,
        because="The host holds the file, weights are copied, states go to the card once, and no name is left.",
    ),
    ChoiceExercise(
        id="8.5",
        right="b",
        because="Each block's input is kept, and one block at a time is run again.",
        table="""
        a :: Then all 24 blocks run again before the first gradient: what stands at once grows.
        c :: That records CUDA graphs: their pool keeps memory, and the step allocates as before.
        d :: An empty cache does not lower what is allocated, and 14 GiB are allocated.
        """,
    ),
    FunctionExercise(
        id="8.6",
        letters={"highest": highest},
        right=highest,
        probes=(
            (1_000_000_000, 2 * GIB, 4, 512, 32_000),
            (1_000_000_000, 9 * GIB, 4, 512, 32_000),
            (1_000_000_000, 2 * GIB, 40, 512, 150_000),
            (100_000_000, 0, 0, 512, 150_000),
            (100_000_000, MIB, 6, 512, 150_000),
        ),
        unit="bytes",
        because="The load is never the highest; the step decides for small sets, the evaluation for large ones.",
        table="""
        highest(params, step_logits, sequences / 2, tokens, words) :: In the evaluation you have half. While the set is
            joined it stands there twice, and each logit has 4 bytes.
        max(16 * params, 12 * params + step_logits) :: You have the step alone. The evaluation can be higher.
        12 * params + 2 * sequences * tokens * words * 4 :: You have the evaluation alone. For a small set the step is
            higher.
        max(16 * params + step_logits, 12 * params + 2 * sequences * tokens * words * 4) :: As the backward begins
            there are no gradients yet, and when all are there the logits are gone: take the larger of two moments.
        max(16 * params, 12 * params + step_logits, 16 * params + 2 * sequences * tokens * words * 4) :: Between two
            steps there are no gradients: the evaluation stands on 12 bytes a parameter.
        max(16 * params, 12 * params + step_logits, 4 * params + 2 * sequences * tokens * words * 4) :: The states stay
            on the card during an evaluation.
        max(16 * params, 12 * params + step_logits, 2 * sequences * tokens * words * 4) :: In the evaluation you have
            the logits alone. Weights and states stand beside them.
        max(16 * params, 12 * params + step_logits) + 2 * sequences * tokens * words * 4 :: The evaluation comes after
            the step and not on top of it.
        """,
    ),
)
