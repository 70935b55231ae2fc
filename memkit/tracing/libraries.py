"""What libraries take that a trace does not know: convolutions, recurrent layers, packed products, compiled steps.

How much is decided by the library's own choice among kernels. So it is told, once for each library, with a size
where the shapes bound it.
"""

import warnings

import torch
from torch import Tensor

from memkit.program.doors import tensors_in
from memkit.units import format_bytes

aten = torch.ops.aten
TOLD_FROM = 0.01
"""A size that is known is told from this part of the peak on."""


def own_layout(out: object, *tensors: object) -> int:
    """Bytes of a convolution's tensors, which oneDNN copies into a layout of its own."""
    return sum(tensor.nbytes for tensor in tensors_in([out, *tensors[:3]]))


def packed(out: Tensor, *factors: Tensor) -> int:
    """Bytes of the right factor, which oneDNN packs for a product of 16-bit numbers."""
    return factors[-1].nbytes if out.dtype in (torch.bfloat16, torch.float16) else 0


CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
LIBRARIES = {
    "meta": dict.fromkeys(CONVOLUTIONS, ("cuDNN", None)),
    "cpu": {
        **dict.fromkeys(CONVOLUTIONS, ("oneDNN", own_layout)),
        **dict.fromkeys((aten.mm.default, aten.addmm.default, aten.bmm.default), ("oneDNN", packed)),
        aten.mkldnn_rnn_layer.default: ("oneDNN", None),
    },
}
"""By device: operations whose library takes more than their fake kernels say, and the function that says how much."""


class Besides:
    """The operation for which each library takes most: its size in bytes (None: unknown), name and place."""

    def __init__(self):
        self.largest: dict[str, tuple[int | None, str, str]] = {}

    def note(self, library: str, num_bytes: int | None, op: str, place: str) -> None:
        """One operation has run."""
        before = self.largest.get(library)
        if num_bytes != 0 and (before is None or (num_bytes or 0) > (before[0] or 0)):
            self.largest[library] = (num_bytes, op, place)

    def tell(self, peak_bytes: int) -> None:
        """Warn once for each library whose share is unknown, or is one of note."""
        for library, (num_bytes, op, place) in self.largest.items():
            if num_bytes is None or num_bytes > TOLD_FROM * peak_bytes:
                size = f", about {format_bytes(num_bytes)}" if num_bytes else ""
                where = f"{place}: " if place else ""
                text = f"{where}{op}: the workspace that {library} takes is not in the trace{size}"
                warnings.warn(text, stacklevel=3)
