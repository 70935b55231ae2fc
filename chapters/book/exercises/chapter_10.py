"""The exercises of lesson 10: what adapters train and keep, and what a base in 4 bits takes."""

from book.exercises import FunctionExercise, NumberExercise

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


def kept_values(tokens, layers):
    """Input values that autograd keeps for linear layers, each (inputs, outputs, whether its weight is trained)."""
    return sum(tokens * num_inputs for num_inputs, _, is_trained in layers if is_trained)


def lora_bytes(base, adapters, width):
    """Weights of the base in bf16; of the adapters weights, gradients and Adam's two states, all of one width."""
    return 2 * base + 4 * width * adapters


def input_bytes(count, width, has_dropout):
    """Bytes a value that ``count`` adapters keep of one bf16 input on a card; ``width`` is that of their weights."""
    if has_dropout:
        return count * (width + 1)
    return 2 if width == 2 else count * width


EXERCISES = (
    NumberExercise(
        id="10.1",
        letters={"L": 32, "r": 16, "h": 4096, "v": 8 * 128},
        formula="L * r * ((h + h) + (h + v))",
        unit="parameters",
        tolerance=0.001,
        also=(6_820_000, 6_810_000),
        because="32 · 16 · ((4,096 + 4,096) + (4,096 + 1,024)): the value projection has 8 heads of 128, not 32.",
        table="""
        L * r * 8 * h :: That is Llama-2-7B's count: adapters beside all four matrices, each with 4,096 outputs.
        L * r * 4 * h :: You gave the value projection 4,096 outputs. Grouped heads: 8 · 128 = 1,024.
        r * (3 * h + v) :: That is one layer. There are 32.
        L * r * 2 * h :: This is the query's adapter alone, or both adapters with their A (r · in) and without B.
        L * r * (h + v) :: This is the value's adapter alone, or both adapters with their B (out · r) and without A.
        2 * L * r * (3 * h + v) :: Twice too many. Did you take rank 32, count each matrix twice, add key and output,
            or give bytes in 16 bits?
        2 * L * r * (h + v) :: That is key and value; or a value projection with 1,024 inputs. Each reads 4,096.
        L * r * (3 * h + 128) :: You gave the value projection one head, 128 outputs. There are 8 of them.
        L * r // 2 * (3 * h + v) :: That is rank 8.
        L * (3 * h + v) :: You left out the rank: A has r · in values, and B has out · r.
        L * r * (4 * h + 2 * v) :: That is query, key and value; only two of them have an adapter here.
        L * r * (3 * h + v) + L * (h + v) :: A and B have no bias: r · (in + out) is all.
        L * r * 3 * h :: You gave the value projection 8 outputs, or none. It has 8 heads of 128.
        4 * L * r * (3 * h + v) :: Parameters were asked for. That is their bytes in float32; or rank 64.
        L * h * (h + v) :: That is W itself, query and value: in · out. An adapter has r · (in + out).
        """,
    ),
    FunctionExercise(
        id="10.2",
        right=kept_values,
        probes=(
            (8, ((64, 256, True), (256, 32, False))),
            (8, ((64, 64, True), (64, 32, True))),
            (100, ((3, 5, False), (5, 7, True), (7, 4, True))),
            (2048, ((4096, 11008, False), (11008, 4096, False))),
        ),
        also=("sum(tokens * rows * trained for rows, _, trained in layers)",),
        because=(
            "Only the weight's gradient needs the input. The gradient of the input needs the weight, which stays."
        ),
        table="""
        sum(tokens * rows for rows, _, _ in layers) :: That is every layer's input, as if all were trained.
        sum(tokens * rows for rows, _, trained in layers if not trained) :: Turned round: these are the inputs of the
            frozen layers.
        sum(tokens * out for _, out, trained in layers if trained) :: These are the outputs. A product's gradients
            need its factors, not its result.
        sum(rows * out for rows, out, trained in layers if trained) :: These are weights, which are there anyway.
            What does the forward have to keep?
        sum(rows for rows, _, trained in layers if trained) :: That is for one token. Each token has input values of
            its own.
        sum(tokens * rows * out for rows, out, trained in layers if trained) :: Inputs times outputs is the weight. A
            layer's input has `tokens` times its number of inputs.
        0 :: A trained weight's gradient is made of the input: that is kept.
        sum(2 * tokens * rows for rows, _, trained in layers if trained) :: Values were asked for, not bytes in
            bfloat16.
        sum(4 * tokens * rows for rows, _, trained in layers if trained) :: Values were asked for, not bytes in
            float32.
        sum(tokens * (rows + out) for rows, out, trained in layers if trained) :: Inputs and outputs: a product's
            gradients need its factors, not its result.
        sum( tokens * rows for i, (rows, _, _) in enumerate(layers) if any(t for *_, t in layers[: i + 1]) ) :: That
            is every input from the first trained layer on. A frozen one needs its weight, not its input.
        sum(tokens * rows for i, (rows, _, t) in enumerate(layers) if t or not i) :: The first layer's input is no
            exception: its gradient is made of the weight, not of the input.
        sum(tokens * rows for i, (rows, _, t) in enumerate(layers) if t and i) :: The first layer's input is no
            exception: if its weight is trained, it is kept.
        sum(tokens * min(rows, out) for rows, out, trained in layers if trained) :: It is the input that is kept,
            whether the output is smaller or not.
        sum(tokens * rows * any(t for *_, t in layers) for rows, _, _ in layers) :: One trained layer does not make
            the frozen ones keep their inputs: each decides for itself.
        """,
    ),
    FunctionExercise(
        id="10.3",
        right=lora_bytes,
        unit="bytes",
        tolerance=1e-9,
        probes=((6_738_415_616, 16_777_216, 4), (8_030_261_248, 6_815_744, 2), (10, 1, 4)),
        also=("base * 2 + adapters * (width + width + 2 * width)",),
        because="Frozen weights cost their own bytes and nothing else; there is no master copy.",
        table="""
        2 * base + 16 * adapters :: 16 bytes are float32; width says which it is.
        2 * base + 12 * adapters :: This is still the broken version: 12 bytes, whatever the width.
        2 * base + 12 * width * adapters :: 12 is a number of bytes, not of tensors. How many tensors of `width` bytes
            per value does an adapter have?
        4 * base + 4 * width * adapters :: The base is bfloat16, 2 bytes, and has no gradient.
        2 * base + 3 * width * adapters :: Weight, gradient and two states are four, not three.
        2 * base + 2 * width * adapters :: Adam's two states are missing, or the weight and gradient.
        4 * width * adapters :: The frozen weights are still in memory.
        2 * base :: The adapters' own tensors are missing.
        2 * base + width * adapters :: That is one tensor of the adapters: which three come on top of their weights?
        width * base + 4 * width * adapters :: The base stays bfloat16, 2 bytes, whatever width the adapters have.
        2 * base + (4 * width + 4) * adapters :: There is no master copy: weight, gradient and two states are all.
        2 * base + (2 + 3 * width) * adapters :: The adapters' weights have `width` bytes too; it is the base that has
            2.
        2 * base + (2 * width + 8) * adapters :: The states have the adapters' width too: torch makes them in the
            dtype of the weights.
        4 * width * (base + adapters) :: The base is frozen: 2 bytes a value, and neither gradient nor states.
        8 * base + 4 * width * adapters :: The base is frozen: it has its weights alone, no gradient and no states.
        2 * base + (3 * width + 4) * adapters :: Gradients have the adapters' width too: torch makes them in the dtype
            of the weights.
        """,
    ),
    FunctionExercise(
        id="10.4",
        right=input_bytes,
        unit="bytes",
        probes=(
            (3, 2, False),
            (3, 2, True),
            (3, 4, False),
            (3, 4, True),
            (1, 2, True),
            (2, 4, False),
        ),
        also=("count * (width + 1) if has_dropout else (count * width if width > 2 else 2)",),
        because="A copy is made where something changes: the dtype, or values that are dropped. Each adapter makes its "
        "own.",
        table="""
        count * (width + has_dropout) :: In bfloat16 without dropout nothing is copied: all adapters share the one
            input, 2 bytes.
        width + has_dropout :: That is one adapter's. Casts, dropped copies and masks are made by each adapter.
        2 if width == 2 else count * width :: Dropout is missing: each adapter keeps its dropped copy, and a mask.
        count * (width + 1) :: Without dropout there is no mask, and in bfloat16 no copy either.
        2 * count * width if has_dropout else 2 if width == 2 else count * width :: A mask as wide as the values: that
            is on a processor. A card's mask has one byte a value.
        count * width if has_dropout else 2 if width == 2 else count * width :: The masks are missing: a byte a value
            for each adapter.
        2 + count * (width + 1) if has_dropout else 2 if width == 2 else 2 + count * width :: Once it is cast or
            dropped, nobody keeps the original: the base is frozen.
        count * width + 1 if has_dropout else 2 if width == 2 else count * width :: Each adapter draws a mask of its
            own.
        count * (width + 1) if has_dropout else width :: Each float32 adapter casts for itself: the casts are not
            shared.
        count * (width + 1) if has_dropout else 2 :: The input is bfloat16, and a float32 adapter casts it: 4 bytes,
            for each adapter.
        count * (width + 1 / 8) if has_dropout else 2 if width == 2 else count * width :: A mask takes a byte a value,
            not a bit: torch's booleans have 8 bits.
        count * 3 if has_dropout else 2 ; count * (2 + has_dropout) :: A float32 adapter makes its copies in float32, 4
            bytes a value; and in bfloat16 without dropout all share the one input.
        2 + count * (width + has_dropout) :: In bfloat16 without dropout there are no copies; and once it is cast or
            dropped, nobody keeps the original.
        0 :: The base is frozen, but each A is trained: its weight's gradient needs its input.
        """,
    ),
    NumberExercise(
        id="10.5",
        letters={"linear": 6_476_005_376, "others": 262_410_240},
        formula="round(linear * 4.127 / 8) + 2 * others",
        tolerance=0.01,
        because="6,476,005,376 values of 4.127 bits are 3.34 GB; the other 262,410,240 stay in bf16: 0.52 GB.",
        table="""
        round((linear + others) * 4.127 / 8) :: Embedding, head and norms are not made 4-bit ones: 2 bytes each.
        linear // 2 + 2 * others :: You left the scales out: 0.127 bits a value with double quantisation.
        round(linear * 4.127 / 8) :: Embedding, head and norms stay in bf16: you left them out, or took half a byte
            for all parameters.
        2 * (linear + others) :: Those are bf16 weights: LoRA's base, not QLoRA's.
        round(linear * 4.25 / 8) + 2 * others :: 4.25 bits are MXFP4's, a scale of 8 bits for 32 values. NF4: 4.127.
        round(linear * 4.5 / 8) + 2 * others :: 4.5 bits is one float32 scale a block. Double quantised: 4.127.
        round(linear * 4.127) + 2 * others :: 4.127 is in bits, and a byte has 8 of them.
        round(linear * 4.127 / 8) + others :: What is not in 4 bits is in bf16: 2 bytes, not 1.
        round(linear * 4.127 / 8) + 4 * others :: What is not in 4 bits is in bf16: 2 bytes, not 4.
        """,
    ),
    NumberExercise(
        id="10.6",
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
        id="10.7",
        letters=MIXTRAL
        | {
            "bits": 4.127 / 8,
            "others": "outside + router",
            "gb": "2 * (experts + others) + bits * attention",
        },
        formula="gb",
        unit="GB",
        tolerance=0.00006,
        also=(91.41, "round(gb, 3)"),
        because="{2 * experts:.1f} GB of experts, {2 * others:.2f} of embedding, head and router, "
        "{bits * attention:.2f} in 4 bits.",
        table="""
        2 * (experts + others) + attention / 2 :: You took 4 bits a value. The scales make it 4.127.
        91.4 :: Right as far as it goes. Two digits after the point tell whether you counted the scales.
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
)
