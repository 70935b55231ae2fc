"""The exercises of chapter 11: cards and inference."""

from book.exercises import NumberExercise
from memkit.formula.inference import kv_cache_bytes_per_token
from memkit.formula.parameters import count_parameters
from memkit.setup.models import LLAMA_2_7B

EXERCISES = (
    NumberExercise(
        id="11.1",
        title="Cache against weights",
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
        id="11.2",
        title="States over the bus",
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
        112 / 25 :: 25 GB/s is what real copies reach. This exercise gives 32.
        seconds * 10**9 / 2**30 :: You turned the bytes into GiB. The bus is in GB/s.
        1000 * seconds :: That is in thousandths of a second.
        """,
    ),
)
