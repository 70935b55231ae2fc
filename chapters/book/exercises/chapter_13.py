"""The exercises of chapter 13: long sequences, two programs on one card."""

from book.exercises import NumberExercise
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_3_8B
from memkit.units import GIB
from stepscope.inference import kv_cache_bytes_per_token

EXERCISES = (
    NumberExercise(
        id="13.1",
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
        id="13.2",
        letters={
            "weights": 2 * count_parameters(LLAMA_3_8B) / GIB,
            "cache": 24 * 8192 * kv_cache_bytes_per_token(LLAMA_3_8B) / GIB,
            "gib": "weights + cache",
        },
        formula="gib",
        unit="GiB",
        tolerance=0.01,
        also=(39.0, 38.96),
        because="{weights:.2f} GiB of weights move to the host, and {cache:.2f} of cache are dropped.",
        table="""
        cache :: That is the cache alone. At level 1 the weights leave the card, too.
        weights :: Those are the weights alone. The cache is dropped, too.
        weights + cache / 24 :: You counted the cache of one answer. There are 24.
        2 * weights + cache ; 2 * (weights + cache) :: You counted weights, or both, twice. The trainer's copy stays.
        gib * 2**30 / 1e9 :: That is in GB. Asked are GiB.
        weights / 2 + cache :: You took a byte per parameter. In 16 bits it is 2.
        cache / 24 :: That is the cache of one answer, and no weights.
        weights + cache / 2 :: You counted keys or values. The 131,072 bytes hold both, for all layers.
        weights + 32 * cache :: The 131,072 bytes are for all 32 layers already.
        weights + 2 * cache :: The 131,072 bytes hold keys and values already.
        weights - cache :: Both leave the card: add them.
        80 - gib ; 79.2 - gib :: That is what an 80 GB card has besides. Asked is what sleep frees.
        """,
    ),
)
