"""The exercises of lesson 13: packed rows, a sequence over several cards, what an engine keeps and its share."""

from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from book.exercises import FunctionExercise, JudgedExercise, NumberExercise
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_2_7B, LLAMA_3_8B, LLAMA_3_70B
from memkit.program.hooks import tensors_in
from memkit.units import GIB
from stepscope.inference import kv_cache_bytes_per_token


def longest_first(lengths):
    """The documents from the longest to the shortest."""
    return sorted(lengths, reverse=True)


def filled_rows(lengths, room, order=longest_first, chosen=min):
    """Rows that hold the documents, each cut to ``room``, taken in an order; ``chosen`` picks a row by what is left."""
    left = []
    for length in order([min(length, room) for length in lengths]):
        fitting = [row for row, free in enumerate(left) if free >= length]
        if fitting:
            left[chosen(fitting, key=left.__getitem__)] -= length
        else:
            left.append(room - length)
    return len(left)


def num_rows(lengths, room):
    """Rows if each document, from the longest on, goes where it leaves least."""
    return filled_rows(lengths, room)


def first_fit(lengths, room):
    """Rows if each document, from the longest on, goes into the first row that has room."""
    return filled_rows(lengths, room, chosen=lambda rows, key: rows[0])


def next_fit(lengths, room):
    """Rows if only the last row is ever looked at."""
    left = []
    for length in longest_first(min(length, room) for length in lengths):
        if not left or left[-1] < length:
            left.append(room)
        left[-1] -= length
    return len(left)


def as_they_come(lengths, room):
    """Rows if the documents are taken in the order of the data."""
    return filled_rows(lengths, room, order=list)


def worst_fit(lengths, room):
    """Rows if each document goes where most room is left."""
    return filled_rows(lengths, room, chosen=max)


def never_full(lengths, room):
    """Rows if a document needs more room than it has tokens."""
    left = []
    for length in longest_first(min(length, room) for length in lengths):
        fitting = [row for row, free in enumerate(left) if free > length]
        if fitting:
            left[min(fitting, key=left.__getitem__)] -= length
        else:
            left.append(room - length)
    return len(left)


def split(lengths, room):
    """Rows if what is longer than a row goes on in another: ``"bfd_split"``."""
    pieces = [room for length in lengths for _ in range(length // room)]
    return num_rows([*pieces, *(length % room for length in lengths if length % room)], room)


def dropped(lengths, room):
    """Rows if what is longer than a row is left out."""
    return num_rows([length for length in lengths if length <= room], room)


HEADS, WIDTH, LENGTHS = 2, 8, (5, 1, 40, 30, 24)


class LargestSquare(TorchDispatchMode):
    """The most values of a tensor made here whose last two axes are both as long as the packed row."""

    num_tokens = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        squares = [t for t in tensors_in(made) if t.dim() > 1 and min(t.shape[-2:]) >= sum(LENGTHS)]
        self.num_tokens = max([self.num_tokens, *(tensor.shape[-1] for tensor in squares)])
        return made


def attention(q: Tensor, k: Tensor, v: Tensor, lengths, is_causal: bool = True) -> Tensor:
    """Attention within each document of a packed row."""
    documents = zip(*(x.split(list(lengths), dim=1) for x in (q, k, v)), strict=True)
    return torch.cat(
        [F.scaled_dot_product_attention(*each, is_causal=is_causal) for each in documents], dim=1
    )


def judge_attention(answer: object) -> str | None:
    """Whether attention over a packed row is causal, keeps documents apart, and makes no square of the row."""
    if not callable(answer):
        return f"{answer!r} is a {type(answer).__name__}; the answer is a function."
    generator = torch.Generator().manual_seed(0)
    row = [
        torch.randn(HEADS, sum(LENGTHS), WIDTH, generator=generator, requires_grad=True)
        for _ in range(3)
    ]
    with LargestSquare() as largest:
        given = answer(*row, LENGTHS)
    if not isinstance(given, Tensor):
        return f"You returned a {type(given).__name__}; the output is one tensor."
    if given.device != row[0].device:
        return f"The output is on {given.device}, and the queries are on {row[0].device}."
    wanted = attention(*row, LENGTHS)
    if given.shape != wanted.shape:
        return f"Your output has the shape {tuple(given.shape)}, the queries have {tuple(wanted.shape)}."
    if problem := _attention_problem(given, wanted, row):
        return problem
    if largest.num_tokens:
        return (
            f"The output is right, and you made a tensor of {largest.num_tokens} × {largest.num_tokens}: tokens × "
            "tokens of the whole row. Take one document at a time."
        )
    if not given.requires_grad:
        return "The output is right, and no gradient can come from it."
    return None


def _attention_problem(given: Tensor, wanted: Tensor, row: list[Tensor]) -> str | None:
    """What an output is that is not the wanted one; ``None`` for the same."""
    if given.dtype != wanted.dtype:
        return f"Your output is {given.dtype}, the queries are {wanted.dtype}."
    value = given.detach()
    if torch.isnan(value).any():
        return "Your output has nan: does a token find nothing to look at?"
    others = {
        "Documents read those before them: that is causal attention over the whole row.": (
            F.scaled_dot_product_attention(*row, is_causal=True)
        ),
        "Every token reads the whole row. Documents are apart, and attention is causal.": (
            F.scaled_dot_product_attention(*row)
        ),
        "Documents are apart, but a token reads those after it: attention is causal.": (
            attention(*row, LENGTHS, is_causal=False)
        ),
        "The documents are cut in the wrong places: take `lengths` in their order.": (
            attention(*row, LENGTHS[::-1])
        ),
    }
    if torch.allclose(value, wanted, rtol=1e-4, atol=1e-5):
        return None
    for words, other in others.items():
        if torch.allclose(value, other, rtol=1e-4, atol=1e-5):
            return words
    first = (value - wanted).abs().amax(dim=(0, 2)).gt(1e-4).nonzero()[0].item()
    return f"The first token that comes out wrong is number {first}. Are the scores divided by the root of the width?"


EXERCISES = (
    FunctionExercise(
        id="13.1",
        letters={
            "first_fit": first_fit,
            "next_fit": next_fit,
            "as_they_come": as_they_come,
            "worst_fit": worst_fit,
            "never_full": never_full,
            "split": split,
            "dropped": dropped,
            "ceil": ceil,
        },
        right=num_rows,
        unit="rows",
        probes=(
            ([2048, 1536, 1024, 768, 512, 384, 256, 128], 2048),
            ([5000, 300, 200], 2048),
            ([], 8),
            ([3, 1, 3, 1], 4),
            ([2, 7, 3, 2, 6], 10),
            ([11, 12, 21, 3, 5, 7], 30),
            ([4, 6, 5, 7, 2], 12),
            ([6, 6, 6], 10),
            ([16, 6, 6], 10),
            ([5, 5, 2], 7),
            ([2, 7, 6, 2, 4, 3], 12),
        ),
        because="From the longest on, each where it leaves least: few rows, and hardly a hole.",
        table="""
        first_fit(lengths, room) :: You take the first row with enough left. Take the one in which least remains.
        next_fit(lengths, room) :: Either you look at the last row alone, and an earlier one may still have room; or
            you begin with the shortest, and the long ones find none. Begin with the longest.
        never_full(lengths, room) :: A document fits where *exactly* its tokens are left, too: compare with >=.
        as_they_come(lengths, room) :: You take the documents as they come. Begin with the longest.
        worst_fit(lengths, room) :: You take the row with *most* left. Take the one in which least remains.
        split(lengths, room) :: What is longer than a row goes on in another in yours: that is "bfd_split". Here it is
            cut off.
        dropped(lengths, room) :: You leave out what is longer than a row. Cut it to a row.
        ceil(sum(lengths) / room) :: That is the least number of rows if documents may be cut anywhere ("wrapped").
        ceil(sum(min(length, room) for length in lengths) / room) :: That is the least number of rows if documents may
            be cut anywhere. They stay whole.
        len(lengths) :: That is a row for each document: padded.
        """,
    ),
    JudgedExercise(
        id="13.2",
        judge=judge_attention,
        because="A document comes out as it would alone, and the largest square is that of the longest document.",
    ),
    NumberExercise(
        id="13.3",
        letters={"tokens": 262_144, "vocab": 128_256, "gb": "tokens / 4 * vocab * 4 / 1e9"},
        formula="gb",
        unit="GB",
        tolerance=0.01,
        also=(33.6, 34.0),
        because="65,536 tokens of 128,256 logits of 4 bytes.",
        table="""
        4 * gb :: That is the whole sequence. A card has a quarter of its tokens.
        gb / 2 :: You took 2 bytes. In float32 it is 4.
        gb / 4 :: That is billions of logits, each of 4 bytes. Or did you divide by four twice?
        gb * 1e9 / 2**30 :: That is in GiB. Asked are GB.
        gb / 16 :: Context parallelism divides the tokens. It divides them once.
        2 * gb :: Did you take 8 bytes, or half of the tokens? A card has a quarter, with 4 bytes each.
        3 * gb :: That is about the peak of a plain cross-entropy. Asked are the logits, one tensor.
        gb / 8 :: That is an eighth: four bytes, not one, and a quarter of the tokens, once.
        tokens / 4 * 4096 * 4 / 1e9 :: Those are the inputs of the head, of width 4,096. Logits have 128,256.
        1000 * gb :: That is in MB.
        """,
    ),
    NumberExercise(
        id="13.4",
        letters={
            "weights": 2 * count_parameters(LLAMA_2_7B),
            "tokens": f"weights / {kv_cache_bytes_per_token(LLAMA_2_7B)}",
        },
        formula="tokens",
        unit="tokens",
        tolerance=0.02,
        also=(26_000, 25_705.0),
        because="25,705 tokens: twelve and a half sequences of 2,048.",
        table="""
        tokens * 1024 :: You took 512 KiB for 512 bytes.
        weights / 512_000 :: You took 1 KiB for 1,000 bytes. It is 1,024.
        tokens / 2 :: That is half. You divided parameters, which have 2 bytes each, or counted 1 MiB a token.
        2 * tokens :: You counted keys or values, 256 KiB. The 512 KiB hold both.
        tokens / 2048 ; 12 ; 13 :: That is the number of sequences of 2,048. Asked are tokens.
        25_000 :: A little too small: to two digits it rounds up.
        4 * tokens :: You took 128 KiB, as Llama-3-8B keeps. Llama-2-7B keeps 512.
        8 * tokens :: You counted bits, or an eighth of the 512 KiB. Both figures are in bytes.
        weights / 2 :: That is the number of parameters. Divide bytes by the bytes of a token.
        tokens / 32 :: 512 KiB is for all 32 layers already.
        """,
    ),
    NumberExercise(
        id="13.5",
        letters={
            "ceil": ceil,
            "GIB": GIB,
            "room": 78.19,
            "weights": 2 * count_parameters(LLAMA_3_70B) / GIB,
            "tokens": 64 * 8192,
            "cache": f"tokens * {kv_cache_bytes_per_token(LLAMA_3_70B)} / GIB",
            "cards": "ceil((weights + cache) / room)",
        },
        formula="cards",
        unit="cards",
        also=(4.0,),
        because="{weights:.1f} GiB of weights and {cache:.1f} GiB of cache, over {room} GiB a card are "
        "{(weights + cache) / room:.2f}.",
        table="""
        cards - 1 :: Did you round down, count keys or values alone, or leave the weights out? Three cards have
            {3 * room:.1f} GiB, and weights and cache need {weights + cache:.1f}.
        ceil(weights / room) :: That holds the weights, and at most one conversation. The cache of 64 is larger than
            they are.
        ceil((weights + 8 * cache) / room) :: You counted 64 key heads. The 64 query heads share 8.
        ceil((weights + 2 * cache) / room) ; ceil(2 * (weights + cache) / room) :: You took 4 bytes per value, of the
            weights, of the cache or of both. Each has 2.
        ceil(8 * weights / room) ; ceil((8 * weights + cache) / room) :: You took the 16 bytes of training. To answer
            takes 2 per parameter.
        ceil((weights + cache) / (0.9 * 79.19)) :: You took a share of 0.9 of each card. Here all but 1 GiB is yours.
        (weights + cache) / room ; round((weights + cache) / room, 2) ; round((weights + cache) / room, 1) :: That is
            right as a quotient. Cards come whole: round up.
        """,
    ),
    NumberExercise(
        id="13.6",
        letters={
            "share": 0.4 * 79.19,
            "weights": 2 * count_parameters(LLAMA_3_8B) / GIB,
            "rest": 3.05,
            "cache": "share - weights - rest",
            "answers": "int(cache)",
            "int": int,
        },
        formula="answers",
        unit="answers",
        also=(13.0,),
        because="{share:.2f} - {weights:.2f} - {rest} = {cache:.2f} GiB of cache, and an answer takes 1 GiB.",
        table="""
        cache ; round(cache, 2) ; round(cache, 1) :: That is right as a quotient. An answer that has no room to its end
            waits: round down.
        answers + 1 :: The last of them has no room to its end: round down.
        int(share - weights) :: The engine needs 3.05 GiB for other things, too.
        int(share - rest) :: The weights are in the share, too.
        int(share) :: That is the whole share in GiB. Weights and what else the engine needs are in it, too.
        int(79.19 - weights - rest) :: The engine has 0.4 of the card, not all of it.
        int(share - weights * 2**30 / 1e9 - rest) :: You took the weights in GB. The share is in
            GiB, and so are they: {weights:.2f}.
        int(0.4 * (79.19 - weights - rest)) ; int(0.4 * (79.19 - weights)) ; int(0.4 * (79.19 - rest) - weights) :: The
            share is of the whole card. Take weights and the rest off afterwards.
        int(share - weights / 2 - rest) :: You took a byte per parameter. In 16 bits it is 2.
        int(2 * cache) :: You counted keys or values. The 131,072 bytes hold both.
        int(32 * cache) :: The 131,072 bytes are for all 32 layers already.
        int(cache / 32) :: The 131,072 bytes are for all 32 layers already.
        int(0.3 * 79.19 - weights - rest) :: That is with TRL's default, 0.3. Here it is 0.4.
        int(0.9 * 79.19 - weights - rest) :: That is with a share of 0.9. Here it is 0.4.
        int(cache * 8192) :: That is tokens. Asked are answers of 8,192.
        """,
    ),
    NumberExercise(
        id="13.7",
        letters={
            "share": 0.4 * 79.19,
            "weights": 2 * count_parameters(LLAMA_3_8B) / GIB,
            "rest": 3.05,
            "int": int,
            "written": 4,
            "gib": "share - rest",
        },
        formula="gib",
        unit="GiB",
        tolerance=0.005,
        also=(28.6, 28.63),
        because="Weights and the whole cache, {gib:.2f} GiB, however many answers stood in it.",
        table="""
        int(gib) :: That is cut off, not rounded: give a digit after the point.
        weights + written :: The cache is reserved as a whole: pages without an answer are freed, too.
        written :: Those are the pages with answers. Weights and the empty pages go, too.
        weights :: Those are the weights alone. The cache goes, too.
        share - weights - rest :: That is the cache alone. The weights go, too.
        share :: That is the whole share. {rest} GiB of it stay.
        79.19 - share :: That is what the engine leaves to others while it is awake.
        79.19 - rest :: The engine has 0.4 of the card, not all of it.
        rest :: That is what stays.
        share - rest - written :: The pages with answers are freed, too: the trainer has the tokens.
        share - weights :: That is what the engine has besides its weights. They go, and {rest} GiB stay.
        (share - rest) / 2 :: Half of it. Both the weights and the cache go.
        share + weights :: The weights are in the share already, and {rest} GiB stay.
        gib * 2**30 / 1e9 :: That is in GB. Asked are GiB.
        """,
    ),
)
