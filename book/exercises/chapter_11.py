"""The exercises of chapter 11: cards and inference."""

from book.exercises import NumberExercise
from memkit.formula.inference import kv_cache_bytes_per_token
from memkit.formula.parameters import count_parameters
from memkit.setup.models import LLAMA_2_7B

_WEIGHTS = 2 * count_parameters(LLAMA_2_7B)
_TOKENS = _WEIGHTS / kv_cache_bytes_per_token(LLAMA_2_7B)
_SECONDS = 2 * (4 + 4) * 7e9 / 32e9
_SEQUENCES = "That is the number of sequences of 2,048. Asked are tokens."

EXERCISES = (
    NumberExercise(
        id="11.1",
        title="Cache against weights",
        right=_TOKENS,
        unit="tokens",
        tolerance=0.02,
        because="25,705 tokens: twelve and a half sequences of 2,048.",
        mistakes=(
            (_TOKENS * 1024, "You took 512 KiB for 512 bytes."),
            (_WEIGHTS / 512_000, "You took 1 KiB for 1,000 bytes. It is 1,024."),
            (_TOKENS / 2, "You counted 1 MiB a token. The 512 KiB hold keys and values."),
            (2 * _TOKENS, "You counted keys or values, 256 KiB. The 512 KiB hold both."),
            (_TOKENS / 2048, _SEQUENCES),
            (12, _SEQUENCES),
            (13, _SEQUENCES),
            (25_000, "A little too small: to two digits it rounds up."),
            (4 * _TOKENS, "You took 128 KiB, as Llama-3-8B keeps. Llama-2-7B keeps 512."),
            (8 * _TOKENS, "You counted bits, or an eighth of the 512 KiB. Both figures are in bytes."),
            (_WEIGHTS / 2, "That is the number of parameters. Divide bytes by the bytes of a token."),
            (_TOKENS / 32, "512 KiB is for all 32 layers already."),
        ),
        accepted=(26_000, 25_705.0),
    ),
    NumberExercise(
        id="11.2",
        title="States over the bus",
        right=_SECONDS,
        unit="seconds",
        tolerance=0.02,
        because="56 GB each way, 112 GB at 32 GB/s.",
        mistakes=(
            (_SECONDS / 2, "One way, or one mean. Two means are read and written back."),
            (_SECONDS / 4, "One mean, one way. Two means are read and written back."),
            (_SECONDS * 1.5, "You counted a master copy, 12 bytes. The means take 8."),
            (
                _SECONDS * 2,
                "Twice as long: the means take 8 bytes a parameter, not 16, and cross twice, not four times.",
            ),
            (_SECONDS / 1000, "That is in thousands of seconds."),
            (56, "That is the gigabytes of both means. How long do they take, there and back?"),
            (112, "That is the gigabytes both ways. Divide by the rate."),
            (8 * _SECONDS, "You counted bits. 32 GB/s are bytes."),
            (_SECONDS * 10**9 / 2**30, "You turned the bytes into GiB. The bus is in GB/s."),
            (1000 * _SECONDS, "That is in thousandths of a second."),
        ),
        accepted=(3.5, 112 / 32),
    ),
)
