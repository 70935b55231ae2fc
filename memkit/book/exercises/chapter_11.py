"""The exercises of chapter 11: cards and inference."""

from memkit.book.exercises import Mistake, NumberExercise
from memkit.formula.inference import kv_cache_bytes_per_token
from memkit.formula.parameters import count_parameters
from memkit.setup.models import LLAMA_2_7B

_WEIGHTS = 2 * count_parameters(LLAMA_2_7B)
_TOKENS = _WEIGHTS / kv_cache_bytes_per_token(LLAMA_2_7B)
_SECONDS = 2 * (4 + 4) * 7e9 / 32e9

EXERCISES = (
    NumberExercise(
        id="11.1",
        title="Cache against weights",
        right=_TOKENS,
        unit="tokens",
        tolerance=0.02,
        because="25,705 tokens: twelve and a half sequences of 2,048.",
        mistakes=(
            Mistake(answer=_TOKENS * 1024, diagnosis="You took 512 KiB for 512 bytes."),
            Mistake(answer=_WEIGHTS / 512_000, diagnosis="You took 1 KiB for 1,000 bytes. It is 1,024."),
            Mistake(answer=_TOKENS / 2, diagnosis="You counted 1 MiB a token. The 512 KiB hold keys and values."),
            Mistake(answer=2 * _TOKENS, diagnosis="You counted keys or values, 256 KiB. The 512 KiB hold both."),
            Mistake(answer=_TOKENS / 2048, diagnosis="That is the number of sequences of 2,048. Asked are tokens."),
            Mistake(answer=12, diagnosis="That is the number of sequences of 2,048. Asked are tokens."),
            Mistake(answer=_TOKENS / 32, diagnosis="512 KiB is for all 32 layers already."),
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
            Mistake(answer=_SECONDS / 2, diagnosis="One way, or one mean. Two means are read and written back."),
            Mistake(answer=_SECONDS / 4, diagnosis="One mean, one way. Two means are read and written back."),
            Mistake(answer=_SECONDS * 1.5, diagnosis="You counted a master copy, 12 bytes. The means take 8."),
            Mistake(
                answer=_SECONDS * 2,
                diagnosis="Twice as long: the means take 8 bytes a parameter, not 16, and cross twice, not four times.",
            ),
            Mistake(answer=8 * _SECONDS, diagnosis="You counted bits. 32 GB/s are bytes."),
            Mistake(answer=_SECONDS * 10**9 / 2**30, diagnosis="You turned the bytes into GiB. The bus is in GB/s."),
            Mistake(answer=1000 * _SECONDS, diagnosis="That is in thousandths of a second."),
        ),
        accepted=(3.5, 112 / 32),
    ),
)
