"""The exercises of lesson 12: who stands on the card beside a UNet, bytes a pixel, tokens of a video."""

import torch

from book.exercises import FunctionExercise, JudgedExercise, NumberExercise
from book.exercises.answers import kind_of

DECAYS = (0.9, 0.99)


def states(narrow):
    """GB of the states of 0.86 billion parameters."""
    return 0.86 * (2.03 if narrow else 8)


def activations(pictures, side, recomputed):
    """GB that are kept for the backward."""
    return pictures * side**2 * (340 if recomputed else 4730) / 1e9


def peak(pictures, side, recomputed, narrow):
    """GB at the larger of two moments: the end of the forward, the end of the backward."""
    first = activations(pictures, side, recomputed) + 1.68
    return 0.86 * 4 + states(narrow) + max(first, 0.86 * 4)


def video_tokens(height, width, frames):
    """Tokens of 16 × 16 pixels and four frames, the first frame alone."""
    return (height // 16) * (width // 16) * (1 + (frames - 1) // 4)


def judge_mean(update) -> str | None:
    """Two updates of two means, of a float32 and of a bfloat16 weight."""
    if not callable(update):
        return f"{kind_of(update)}; the answer is a function."
    weights = [
        torch.full((4,), 1.0, requires_grad=True),
        torch.full((2, 3), 3.0, dtype=torch.bfloat16, requires_grad=True),
    ]
    was = [weight.detach().clone() for weight in weights]
    means = [torch.zeros(4), torch.zeros(2, 3)]
    places = [mean.data_ptr() for mean in means]
    ema, wanted = list(means), [torch.zeros(4), torch.zeros(2, 3)]
    for decay in DECAYS:
        update(ema, weights, decay)
        wanted = [
            decay * mean + (1 - decay) * weight.float()
            for mean, weight in zip(wanted, was, strict=True)
        ]
    if len(ema) != len(means):
        return f"The list of means had {len(means)} tensors and has {len(ema)} now. Change the tensors, not the list."
    if any(not torch.equal(a.detach(), b) for a, b in zip(weights, was, strict=True)):
        return "The weights have changed. Only the means may."
    if not all(weight.requires_grad for weight in weights):
        return "A weight requires no gradient any more, so it is not trained. Work under `torch.no_grad()`."
    if any(mean.requires_grad for mean in (*ema, *means)):
        return "A mean requires a gradient now, and its graph keeps every step before it. Work under `torch.no_grad()`."
    if any(now is not mean for now, mean in zip(ema, means, strict=True)):
        return "You put new tensors in the place of the means. Change each mean in place, with `lerp_` or `mul_`."
    if any(mean.dtype != torch.float32 for mean in means):
        return (
            "A mean is not float32 any more. Turn the weight into the mean's dtype, not the mean."
        )
    if any(mean.data_ptr() != place for mean, place in zip(means, places, strict=True)):
        return "A mean has new memory: `.data = ...` gives it another tensor's. Change its values, with `lerp_`."
    if all(not mean.any() for mean in means):
        return "The means are still 0: what you computed is in other tensors. Change each mean in place."
    if all(torch.allclose(m, w, atol=1e-6) for m, w in zip(means, wanted, strict=True)):
        return None
    turned = [torch.zeros_like(mean) for mean in means]
    for decay in DECAYS:
        turned = [
            (1 - decay) * mean + decay * weight.float()
            for mean, weight in zip(turned, was, strict=True)
        ]
    if all(torch.allclose(m, t, atol=1e-6) for m, t in zip(means, turned, strict=True)):
        return "The other way round: `decay` is the share of the old mean, near 1. The weight's share is 1 − decay."
    if all(torch.allclose(m, w, atol=0.02) for m, w in zip(means, wanted, strict=True)):
        return "Nearly: some of it is rounded to bfloat16. Turn the weight into the mean's dtype before you multiply."
    shown, right = means[0][0].item(), wanted[0][0].item()
    return f"After two updates, with {DECAYS}, a mean of a weight of 1 is {shown:.4f}. It should be {right:.4f}."


EXERCISES = (
    JudgedExercise(
        id="12.1",
        judge=judge_mean,
        because="In place, in the mean's own dtype, and nothing is recorded: it costs 4 bytes a parameter and no more.",
    ),
    NumberExercise(
        id="12.2",
        letters={
            "top": 3 * 320 * 128**2,
            "middle": (320 + 2 * 640) * 64**2,
            "low": (640 + 2 * 1280) * 32**2,
        },
        formula="2 * (top + middle + low)",
        unit="bytes",
        tolerance=0.001,
        also=(51_118_080, 51.1e6),
        because="{2 * (top + middle + low):,} bytes, a hundredth of what such a UNet keeps.",
        table="""
        top + middle + low :: Those are values. In float16 each has two bytes.
        4 * (top + middle + low) :: That is in float32. They are in float16.
        2 * (top + middle + low + 1280 * 16**2) :: The lowest level has no convolution that halves.
        2 * (2 * 320 * 128**2 + middle + low) :: You left out what the first convolution makes, or one of the two
            stages of the top level.
        2 * (top + 2 * 640 * 64**2 + 2 * 1280 * 32**2) :: You left out what the two halving convolutions make.
        2 * (2 * 320 * 128**2 + 2 * 640 * 64**2 + 2 * 1280 * 32**2) :: You counted the stages alone. The first
            convolution and the two halving ones make skips too.
        2 * (top + 3 * 640 * 64**2 + 3 * 1280 * 32**2) :: A convolution that halves keeps the width: 320 at 64 × 64,
            640 at 32 × 32.
        2 * (top + (320 + 640) * 64**2 + (640 + 1280) * 32**2) :: Each level has two stages, and each makes a skip.
        2 * (4 * 320 * 128**2 + 3 * 640 * 64**2 + 2 * 1280 * 32**2) :: What a convolution that halves makes has the
            side of the level below: 64 × 64 and 32 × 32.
        2 * (3 * 320 * 64**2 + (320 + 2 * 640) * 32**2 + (640 + 2 * 1280) * 16**2) :: That is for a latent of
            64 × 64.
        2 * 320 * 128**2 * 8 :: Not all eight have the top level's size: a level below has half the side.
        """,
    ),
    FunctionExercise(
        id="12.3",
        right=peak,
        letters={"W": 0.86 * 4, "S": states, "A": activations},
        unit="GB",
        tolerance=0.001,
        probes=(
            (1, 512, False, True),
            (1, 512, False, False),
            (4, 512, False, True),
            (2, 1024, False, False),
            (2, 1024, True, False),
            (16, 1024, True, True),
            (16, 1536, False, False),
        ),
        also=(
            "max(W + S(narrow) + A(pictures, side, recomputed) + 1.68, W + W + S(narrow))",
            "round(W + S(narrow) + max(A(pictures, side, recomputed) + 1.68, W), 2)",
        ),
        because="Recomputation lowers the first of the two moments, 8-bit states both.",
        table="""
        W + S(narrow) + A(pictures, side, recomputed) + 1.68 + W :: You added the two moments up. When gradients are
            all there, activations and copies are gone.
        W + S(narrow) + A(pictures, side, recomputed) + 1.68 :: That is the end of the forward alone. With few pixels
            the end of the backward is higher.
        W + S(narrow) + W :: That is the end of the backward alone.
        W + S(narrow) + max(A(pictures, side, recomputed), W) :: The 16-bit copies of the weights are missing: they
            stay to the end of the forward.
        W + max(A(pictures, side, recomputed) + 1.68, W + S(narrow)) :: The states are there in the forward too, from
            the second step on.
        W + S(narrow) + max(A(pictures, side, recomputed) + 1.68, W + A(pictures, side, recomputed)) :: At the end of
            the backward the activations are gone.
        W + S(narrow) + max(A(pictures, side, recomputed) + 1.68, W + 1.68) :: At the end of the backward the 16-bit
            copies are gone.
        W + S(narrow) + max(A(pictures, side, recomputed) + (0 if recomputed else 1.68), W) :: Autocast keeps the
            16-bit copies to the end of the forward, recomputed or not.
        W + 0.86 * (2 if narrow else 8) + max(A(pictures, side, recomputed) + 1.68, W) :: `narrow` states have 2.03
            bytes: two codes and their scales.
        W + S(narrow) + max(A(1, side, recomputed) + 1.68, W) :: You left the number of pictures out.
        W + S(narrow) + max(A(pictures, side, recomputed) / 64 + 1.68, W) :: The bytes are for a pixel of the picture,
            not of the latent.
        W + S(narrow) + max(A(pictures, side, False) + 1.68, W) :: `recomputed` changes nothing in your answer.
        W + S(False) + max(A(pictures, side, recomputed) + 1.68, W) :: `narrow` changes nothing in your answer.
        W + S(not narrow) + max(A(pictures, side, recomputed) + 1.68, W) :: The other way round: `narrow` states have
            2.03 bytes.
        W + S(narrow) + max(A(pictures, side, not recomputed) + 1.68, W) :: The other way round: `recomputed` keeps
            340 bytes a pixel.
        1e9 * (W + S(narrow) + max(A(pictures, side, recomputed) + 1.68, W)) :: That is in bytes. GB are asked for.
        S(narrow) + max(A(pictures, side, recomputed) + 1.68, W) :: The weights are missing: they are there at both
            moments.
        """,
    ),
    NumberExercise(
        id="12.4",
        letters={"six": 6},
        formula="2",
        unit="pictures",
        because="8-bit states take off 5.13 GB; recomputation 3.2 with one picture, 8.2 with two.",
        table="""
        1 :: With one picture recomputation takes off 3.2 GB: after it the end of the backward is the highest moment.
            8-bit states take off 5.13.
        3 ; 4 ; 5 :: Already two are enough: recomputation takes off 8.2 GB.
        six :: That is at 512 × 512. A picture of 1,024 × 1,024 has four times the pixels.
        7 ; 8 :: That is about four times too many. Did you take 512 × 512?
        1.39 ; 1.4 ; 1.38 :: Pictures come whole: the next one up.
        """,
    ),
    FunctionExercise(
        id="12.5",
        right=video_tokens,
        unit="tokens",
        probes=((480, 832, 81), (1024, 1024, 1), (256, 512, 5), (720, 1280, 121)),
        also=(
            "height * width * ((frames + 3) // 4) // 256",
            "(height // 16) * (width // 16) * (1 + frames // 4)",
        ),
        because="A token is 16 × 16 pixels of four frames, and the first frame stands alone.",
        table="""
        (height // 16) * (width // 16) * frames :: You took each frame by itself. The VAE takes four as one.
        (height // 16) * (width // 16) * (frames // 4) :: The first frame is missing: it is a frame of the latent by
            itself. One picture would have no token.
        (height // 16) * (width // 16) * (frames / 4) :: The first frame stands alone; the others go by fours.
        (height // 8) * (width // 8) * (1 + (frames - 1) // 4) :: Those are pixels of the latent. A token is 2 × 2 of
            them.
        (height // 8) * (width // 8) * (1 + (frames - 1) // 4) / 2 :: A patch is 2 × 2 pixels of the latent: four.
        (height // 16) * (width // 16) * (1 + (frames - 1) // 4) / 2 :: A patch takes each frame of the latent by
            itself.
        (height // 2) * (width // 2) * (1 + (frames - 1) // 4) :: The patches are of the latent, not of the picture.
        (height // 16) * (width // 16) * (1 + (frames - 1) // 8) :: A patch takes each frame of the latent by itself.
        (height // 16) * (width // 16) :: The frames are missing.
        height * width * (1 + (frames - 1) // 4) // 16 :: A token is 16 × 16 pixels, 256.
        256 * height * width * (1 + (frames - 1) // 4) :: Divide by the 256 pixels of a token.
        """,
    ),
)
