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
        if not is_of_a_transformer(func) or is_attention_by_heads(func, args):
            self.to_measure[str(func.overloadpacket)] = None
        if func in PRODUCTS and out.dtype.itemsize == 2:
            # oneDNN packs the factors and makes the result in float32 first, where the processor wants it
            packed = sum(factor.nbytes for factor in args[-2:]) + 4 * out.numel()
            standing = sum(log.sizes[block] for block in log.live)
            self.highest_packed = max(self.highest_packed, (standing + packed, f"{func.overloadpacket} in 16 bits"))

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


def is_attention_by_heads(func, args: tuple) -> bool:
    """Whether the CPU's attention is given tensors that lie head by head: its backward copies what it gives back.

    A model's projections lie token by token, and of those a trace knows every byte.
    """
    return func._opname == "_scaled_dot_product_flash_attention_for_cpu" and any(
        x.shape[1] > 1 and x.shape[2] > 1 and x.stride(1) > x.stride(2) for x in args[:3])
