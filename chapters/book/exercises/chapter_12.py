"""The exercises of chapter 12: cards and inference."""

from math import ceil

from book.exercises import NumberExercise
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_2_7B, LLAMA_3_70B
from memkit.units import GIB
from stepscope.inference import kv_cache_bytes_per_token

EXERCISES = (
    NumberExercise(
        id="12.1",
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
        id="12.2",
        letters={"seconds": 2 * (4 + 4) * 7e9 / 32e9},
        formula="seconds",
        unit="seconds",
        tolerance=0.02,
        also=(3.5, "112 / 32"),
        because="56 GB each way, 112 GB at 32 GB/s.",
        table="""
        seconds / 2 :: That is half: one way, one mean, or means of 2 bytes. Two float32 means cross twice.
        seconds / 4 :: One mean, one way. Two means are read and written back.
        seconds * 1.5 :: You counted a master copy, 12 bytes. The means take 8.
        seconds * 2 :: Twice as long: the means take 8 bytes a parameter, not 16, and cross twice, not four times.
        seconds / 1000 :: That is in thousands of seconds.
        56 :: That is the gigabytes of both means. How long do they take, there and back?
        112 :: That is the gigabytes both ways. Divide by the rate.
        8 * seconds :: You counted bits. 32 GB/s are bytes.
        112 / 25 :: 25 GB/s is about what real copies reach (section 12.2). This exercise gives 32.
        seconds * 10**9 / 2**30 :: You turned the bytes into GiB. The bus is in GB/s.
        seconds * 2**30 / 10**9 :: You turned the rate into GiB and left the bytes in GB. Both are in GB.
        1000 * seconds :: That is in thousandths of a second.
        """,
    ),
    NumberExercise(
        id="12.3",
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
        16 :: That is for H100s (section 12.3). These cards are half as large.
        14 :: That is the guide's number, for cards of 80 GB and states alone.
        states / room ; round(states / room, 2) ; round(states / room, 1) :: That is right as a quotient. Cards come
            whole: round up.
        """,
    ),
    NumberExercise(
        id="12.4",
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
        (weights + cache) / room ; round((weights + cache) / room, 2) ; round((weights + cache) / room, 1) :: That is
            right as a quotient. Cards come whole: round up.
        """,
    ),
)
