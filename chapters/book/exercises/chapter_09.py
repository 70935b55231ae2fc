"""The exercises of chapter 09: states in few bits, adapters, offload."""

from book.exercises import FunctionExercise, NumberExercise


def lora_bytes(base, adapters, width):
    """Weights of the base in bf16; of the adapters weights, gradients and Adam's two states, all of one width."""
    return 2 * base + 4 * width * adapters


def kept_values(tokens, layers):
    """Input values that autograd keeps for linear layers, each (inputs, outputs, whether its weight is trained)."""
    return sum(tokens * num_inputs for num_inputs, _, is_trained in layers if is_trained)


def standing(sizes, n, alone=None):
    """Gradient values in memory together with n micro-batches; ``alone``: those of a step in the backward."""
    return sum(sizes) if n > 1 else max(sizes) if alone is None else alone


def rest(sizes, states):
    """Bytes of weights in 16 bits and of states."""
    return (2 + states) * sum(sizes)


def model_bytes(sizes, states, n):
    """Bytes of weights, states and gradients at their highest, with n micro-batches."""
    return rest(sizes, states) + 2 * standing(sizes, n)


EXERCISES = (
    NumberExercise(
        id="9.1",
        letters={"n": 4096 * 11008, "scales": "4 * n // 256"},
        formula="2 * (n + scales)",
        tolerance=0.001,
        also=(91_600_000, 91_500_000, "2.03 * n", 2.03 * 45.1e6),
        because="Two codes of one byte, and a float32 scale for each 256 of them: 2.03 B a parameter.",
        table="""
        n :: That is one byte a parameter. Adam keeps two states.
        2 * n :: The codes are right. Each block of 256 has a float32 scale as well.
        n + scales :: That is one state with its scales; Adam keeps two.
        2 * n + scales :: The scales are half of what they should be: each state has its own, and one has 4 bytes.
        8 * n :: That is AdamW in float32: 4 bytes, twice.
        16 * n :: A code has 8 bits, which is one byte, not eight.
        4 * n :: That is AdamW in bfloat16: 2 bytes, twice.
        2 * (n + scales // 4) :: A scale is a float32: 4 bytes, not one.
        2 * (n + 4 * n // 64) :: Blocks of 64 are NF4's, of weights; these are of 256.
        2 * scales :: Those are the scales alone; each value has a code of one byte, twice.
        4 * n + 2 * scales :: A code has one byte, not two; and the weight is no state.
        2 * (n + 4 * n // 2048) :: Blocks of 2,048 are the paper's; here a scale serves 256 values.
        2 * (n + 2 * scales) :: A scale is a float32: 4 bytes, not eight.
        n + 2 * scales :: A code has 8 bits, one byte; those would be 4-bit codes.
        """,
    ),
    NumberExercise(
        id="9.2",
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
        id="9.3",
        right=kept_values,
        probes=(
            (8, ((64, 256, True), (256, 32, False))),
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
        id="9.4",
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
    NumberExercise(
        id="9.5",
        letters={"P": 6_738_415_616},
        formula="4 * P",
        tolerance=0.002,
        also=(2.7e10, 26_950_000_000),
        because="2 B a parameter to the host as gradients, 2 B back as weights, whatever the batch is.",
        table="""
        2 * P :: That is one direction. Gradients go there, new weights come back.
        8 * P :: 4 B a value is float32. Here weights and gradients are bfloat16.
        P :: That is a count of values; each has 2 bytes, and both directions count.
        0 :: The step is done on the host: it needs the gradients, and the card needs the new weights.
        10 * P ; 12 * P ; 14 * P :: The states stay on the host and never cross the link.
        6 * P :: Weights need not go to the host: their copy is there already. Nor is one of the two ways in float32.
        4 * 7_000_000_000 :: 7 billion is 4 % too many: count the model's parameters as they are.
        4 * 6_700_000_000 :: Two digits of the count give two of the answer: take 6.738 billion.
        16 * P :: That is what card and host keep in float32, not what moves.
        4 * P / 31.5e9 ; 0.86 :: That is in seconds, at 31.5 GB/s. Asked are the bytes.
        """,
    ),
    FunctionExercise(
        id="9.6",
        letters={"rest": rest, "standing": standing, "right": model_bytes},
        right=model_bytes,
        unit="bytes",
        tolerance=1e-9,
        probes=(
            ((50, 400, 30), 2, 1),
            ((50, 400, 30), 4, 8),
            ((7, 3, 9, 5), 8, 1),
            ((7, 3, 9, 5), 2, 2),
        ),
        also=(
            "(2 + states) * sum(sizes) + 2 * (max if n == 1 else sum)(sizes)",
            "max((2 + states) * sum(sizes) + 2 * (sum(sizes) if n > 1 else g) for g in sizes)",
        ),
        because=(
            "In one pass a gradient is used and freed before the next, so the largest decides. A sum over several "
            "passes needs a place for each: accumulation takes back what the step in the backward saves."
        ),
        table="""
        rest(sizes, states) + 2 * sum(sizes) :: With one micro-batch the optimizer may step in the backward: not all
            gradients are there at once.
        rest(sizes, states) + 2 * max(sizes) :: Accumulated gradients wait for the last micro-batch, all of them. What
            can then be freed early?
        rest(sizes, states) + 2 * standing(sizes, n, 0) :: A gradient that is used at once is still there while it is
            used: the largest one counts.
        rest(sizes, states) + 2 * (max(sizes) if n > 1 else sum(sizes)) :: Turned round: it is accumulation that needs
            all gradients together.
        rest(sizes, states) + 2 * (n * sum(sizes) if n > 1 else max(sizes)) :: Micro-batches add to the same
            gradients: one set, however many there are.
        rest(sizes, states) + 2 * (sum(sizes) + max(sizes) if n > 1 else max(sizes)) :: True for a moment: the newest
            gradient is there beside the sum until it is added. Leave it out here.
        rest(sizes, states) + 2 * (2 * sum(sizes) if n > 1 else max(sizes)) :: The sum is in the gradients
            themselves: one set of them, in bfloat16.
        (4 + states) * sum(sizes) + 2 * standing(sizes, n) :: Weights are bfloat16, 2 bytes a value, and there is no
            copy of them in float32.
        right(sizes, states, n) - sum(sizes) - standing(sizes, n) :: A weight and a gradient in bfloat16 take 2 bytes
            each, not one.
        right(sizes, 0, n) :: The states are missing: `states` bytes for each value, from step to step.
        rest(sizes, states) + 4 * standing(sizes, n) :: 4 bytes a gradient are float32. Here gradients are bfloat16.
        rest(sizes, states) :: Gradients are missing: at least one is there while it is used.
        states * sum(sizes) + 2 * standing(sizes, n) :: The weights themselves are missing, 2 bytes a value.
        (4 + states) * standing(sizes, n) ; 2 * sum(sizes) + (2 + states) * standing(sizes, n) :: Weights and states
            of every tensor stay from step to step. Only gradients come and go.
        rest(sizes, states) + 2 * standing(sizes, n, sizes[0]) :: The highest moment is the largest tensor's, wherever
            it is in the order.
        rest(sizes, states) + 2 * standing(sizes, n, sizes[-1]) :: The highest moment is the largest tensor's,
            wherever it is in the order.
        rest(sizes, states) + 2 * standing(sizes, n, sum(sizes) / len(sizes)) :: That is an average gradient; the
            highest moment has the largest.
        rest(sizes, states) + 2 * (sum(sizes) / n) :: A gradient is as large as its weight, however small the
            micro-batch is.
        rest(sizes, states) + 2 * (sum(sizes) - max(sizes) * (n == 1)) :: You took the largest gradient off; it is the
            one that is left.
        right(sizes, 2 * states, n) :: Twice the states: `states` counts all that an optimizer keeps for a value, both
            of Adam's too.
        8 * sum(sizes) :: 8 bytes a value are AdamW in bfloat16 with every gradient kept; `states` says what is
            kept here.
        None if n > 1 else right(sizes, states, n) :: Accumulation is allowed; the step in the backward is not. Then
            the gradients wait, all of them.
        """,
    ),
)
