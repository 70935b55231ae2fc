"""More kernels that torch has for CUDA and not for ``meta``, and functions that may take another amount than traced."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from memkit.formula.kernels import Stages
from memkit.tracing.kernels import BY_NAME, KERNELS
from memkit.units import round_up
from stepscope.tracing.refusals import not_followed


def grouped_mm(a: Tensor, b: Tensor, offs: Tensor | None = None, bias=None, out_dtype=None) -> Tensor:
    """Products of the groups of a mixture of experts, in any dtype, rows aligned to 16 bytes."""
    if a.dim() == b.dim():
        sizes = (len(offs) if a.dim() == 2 else a.shape[0], a.shape[-2], b.shape[-1])
    else:
        sizes = (a.shape[-2], b.shape[-1])
    dtype = out_dtype or a.dtype
    row = round_up(sizes[-1], 16 // dtype.itemsize)
    strides = (row * sizes[-2], row, 1)[-len(sizes) :]
    return torch.empty_strided(sizes, strides, dtype=dtype, device=a.device)


def ctc_loss(scores: Tensor, targets: Tensor, lengths, target_lengths, *_, **__) -> tuple[Tensor, Tensor]:
    """A loss for each text and the forward variables, of two and a blank for each letter of the longest text.

    The longest is taken to be as long as the rows are padded.
    """
    if targets.dim() != 2:
        raise not_followed("ctc_loss with targets in one row", "pad them to a row for each text")
    longest = targets.shape[1]
    length, batch, _ = scores.shape
    return scores.new_empty(batch), scores.new_empty(batch, length, 2 * longest + 1)


def ctc_loss_backward(grad: Tensor, scores: Tensor, *_, **__) -> Tensor:
    """The scores' gradient."""
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


TOLD = {
    **dict.fromkeys(
        (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu),
        "is traced as small operations; CUDA runs one of cuDNN, with a reserve",
    ),
    **dict.fromkeys(
        (torch.prod, Tensor.prod, torch.cumprod, Tensor.cumprod),
        "has a backward that is traced as for factors with zeros: without one it may take less",
    ),
    **dict.fromkeys(
        (torch._VF.cdist, torch.ctc_loss, torch._C._nn.im2col, torch._C._nn.col2im),
        "has a kernel that takes copies of its inputs besides, which are not in the trace",
    ),
}
"""Functions that may take another amount than traced, and what is said of each."""


def told(mode, func, args, kwargs):
    """A call as it is, with a warning."""
    mode.warn_once(func.__name__, f"{func.__name__} {TOLD[func]}", is_told_in_torch=True, is_about_number=True)
    return func(*args, **kwargs)


KERNELS |= {"_grouped_mm": grouped_mm, "mish_backward": lambda grad, x: torch.empty_like(x)}
for name in ("", ".Tensor"):
    KERNELS |= {f"_ctc_loss{name}": ctc_loss, f"_ctc_loss_backward{name}": ctc_loss_backward}


def four_bit_product(
    x: Tensor, codes, shape: Sequence[int], absmax, block_size, kind, bias=None, absmax_8bit=None, *_, **__
) -> Stages:
    """The weight in the input's dtype and, where the scales are in 8 bits, the scales in float32 with their mean."""
    num_scales = 0 if absmax_8bit is None else absmax_8bit.numel()
    wide = math.prod(shape) * x.element_size()
    return [[4 * num_scales, 4 * num_scales], [4 * num_scales, wide]] if num_scales else [[wide]]


BY_NAME["bitsandbytes.gemm_4bit.default"] = four_bit_product
