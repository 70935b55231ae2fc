"""The exercises of chapter 13: experts, long sequences, two programs on one card."""

from book.exercises import NumberExercise
from memkit.formula.parameters import count_parameters
from memkit.models import LLAMA_3_8B
from memkit.units import GIB
from stepscope.inference import kv_cache_bytes_per_token

EXPERT = 3 * 4096 * 14336
ATTENTION = 2 * 4096 * 32 * 128 + 2 * 4096 * 8 * 128
MIXTRAL = {
    "experts": 32 * 8 * EXPERT / 1e9,
    "used": 32 * 2 * EXPERT / 1e9,
    "attention": 32 * ATTENTION / 1e9,
    "router": 32 * 4096 * 8 / 1e9,
    "outside": 2 * 32_000 * 4096 / 1e9,
    "total": "experts + attention + router + outside",
}
"""Billions of parameters of Mixtral-8x7B, norms left out."""

EXERCISES = (
    NumberExercise(
        id="13.1",
        letters=MIXTRAL | {"gb": "2 * total"},
        formula="gb",
        unit="GB",
        tolerance=0.002,
        also=(93.4,),
        because="{total:.1f} billion parameters of 2 bytes.",
        table="""
        112 :: That is 8 times 7 billion. The experts share attention, embedding and head, which are there once.
        total ; 46.7 :: That is billions of parameters. Each takes 2 bytes.
        4 * total :: You took 4 bytes per parameter. In 16 bits it is 2.
        2 * (used + attention + router + outside) :: You counted the two experts that a token uses. All eight have to
            be there.
        2 * (experts * 2 / 3 + attention + router + outside) :: An expert has three matrices, gate, up and down. You
            counted two.
        2 * (experts / 8 + attention + router + outside) :: You counted one expert of each layer. There are eight.
        2 * experts :: Those are the experts alone. Attention, embedding and head come on top.
        2 * (experts + attention + router) ; 93 :: Did you leave out embedding and head? With them it is half a GB more;
            give one digit after the point.
        2e9 * total / 2**30 :: That is in GiB. Asked are GB, 10⁹ bytes.
        16 * total :: That is with gradients and states, 16 bytes per parameter. Asked are the weights.
        2 * (experts + attention * 8 / 5 + router + outside) :: You gave keys and values 32 heads. They have 8.
        2 * (experts + router + outside) :: You forgot the attention.
        16 * (total - experts * 7 / 8) :: That is eight whole models. The experts share attention, embedding and head.
        total / 2 :: You took 4 bits. Asked are 16.
        """,
    ),
    NumberExercise(
        id="13.2",
        letters=MIXTRAL
        | {
            "bits": 4.127 / 8,
            "others": "outside + router",
            "gb": "2 * (experts + others) + bits * attention",
        },
        formula="gb",
        unit="GB",
        tolerance=0.002,
        also=(91.4,),
        because="{2 * experts:.1f} GB of experts, {2 * others:.2f} of embedding, head and router, "
        "{bits * attention:.2f} in 4 bits.",
        table="""
        2 * total :: That is all in 16 bits. The attention's matrices are in nn.Linear layers and do shrink.
        bits * total ; total / 2 :: That would be everything in 4 bits. The experts are no nn.Linear.
        bits * (experts + attention) + 2 * others :: That is with the experts in 4 bits. This library does not reach
            them.
        2 * experts :: Those are the experts alone.
        2 * experts + bits * (attention + others) ; 91 :: Did you take embedding and head in 4 bits? They stay in 16;
            give one digit after the point.
        2 * experts + others + bits * (attention + others / 2) :: You took the head in 4 bits. Here it stays in 16.
        bits * attention + 2 * others :: You left the experts out. They are the largest part.
        2 * (used + others) + bits * attention :: You counted the two experts that a token uses. All eight are loaded.
        (2e9 * (experts + others) + 1e9 * bits * attention) / 2**30 :: That is in GiB. Asked are GB.
        4 * (experts + others) + bits * attention :: You took 4 bytes for what stays. In 16 bits it is 2.
        2 * (experts + others) + 4.127 * attention :: You took 4.127 bytes. They are bits: divide by 8.
        bits * experts + 2 * (attention + others) :: You turned it around. The attention is in nn.Linear layers and
            shrinks; the experts stay as they are.
        2 * (experts + others) + attention :: You took a byte per parameter of the attention. It is 4.127 bits.
        """,
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
