"""What a trace leaves out: operations that take more than is known of them. It stands beside the number.

On a card a library decides by itself, by card and version, what it takes beside an operation's results. On a CPU the
copies that a kernel makes are known of a transformer's step alone.
"""

import torch

from memkit.program.log import Log
from memkit.tracing.cpu import PRODUCTS, is_of_a_transformer

aten = torch.ops.aten
CUDA_LIBRARIES = dict.fromkeys((aten.convolution.default, aten.convolution_backward.default), "cuDNN")
CUDA_LIBRARIES |= {
    getattr(aten, name).default: "cuSOLVER"
    for name in "_linalg_eigh _linalg_svd linalg_qr linalg_cholesky_ex linalg_inv_ex _linalg_solve_ex".split()
}
CUDA_LIBRARIES |= dict.fromkeys((aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default), "cuFFT")
"""Operations whose library takes a workspace on a card, of a size that only the card knows."""


class LeftOut:
    """What is said once of a trace: each library with its first call's place, and operations to measure on a CPU."""

    def __init__(self):
        self.of_libraries: dict[str, str] = {}
        self.highest_packed = (0, "")
        self.to_measure: dict[str, None] = {}  # a dict, for the order in which they were met

    def meet(self, func, place: str) -> None:
        """Remember the first call of each library that takes what nobody knows."""
        library = CUDA_LIBRARIES[func]
        text = f"{place}: {func}: the workspace that {library} takes is not in the trace"
        self.of_libraries.setdefault(library, text)

    def meet_on_cpu(self, func, args: tuple, out: object, log: Log) -> None:
        """Remember an operation on the CPU's rules, if it may take what they do not know."""
        if not is_of_a_transformer(func):
            self.to_measure[str(func.overloadpacket)] = None
        if func in PRODUCTS and out.dtype.itemsize == 2:
            # oneDNN packs the factors and makes the result in float32 first, where the processor wants it
            packed = sum(factor.nbytes for factor in args[-2:]) + 4 * out.numel()
            standing = sum(log.sizes[block] for block in log.live)
            self.highest_packed = max(self.highest_packed, (standing + packed, f"{func.overloadpacket} in 16 bits"))
        elif scratch := scratch_of_attention(func, args):
            standing = sum(log.sizes[block] for block in log.live) + sum(t.nbytes for t in out)
            self.highest_packed = max(self.highest_packed, (standing + scratch, str(func.overloadpacket)))

    def texts(self, peak_bytes: int) -> list[str]:
        """A sentence for each library, and one for the CPU."""
        texts = list(self.of_libraries.values())
        if self.highest_packed[0] > peak_bytes:
            self.to_measure[self.highest_packed[1]] = None
        if self.to_measure:
            texts.append(
                f"measure it there: {', '.join(self.to_measure)}. On the CPU's rules a trace knows what a "
                "transformer's step takes; these may take more than their results, which measure_memory sees"
            )
        return texts


def scratch_of_attention(func, args: tuple) -> int:
    """Bytes that the CPU's attention takes at most and gives back: in each thread a tile of scores, a gradient's copy.

    A step whose peak is elsewhere never shows them. Source: ATen/native/cpu/FlashAttentionKernel.cpp of torch 2.13.
    """
    forward = func._opname == "_scaled_dot_product_flash_attention_for_cpu"
    if not forward and func._opname != "_scaled_dot_product_flash_attention_for_cpu_backward":
        return 0
    query, key = args[:2] if forward else args[1:3]
    length, head_size = query.shape[2:]
    rows = min(length, 256 if length >= 768 else 64 if length >= 192 else 32)
    columns = min(key.shape[2], 512)
    values = rows * (columns + 2 + head_size) if forward else rows * (2 * columns + 1)
    return torch.get_num_threads() * 4 * values + (0 if forward else args[0].nbytes)
