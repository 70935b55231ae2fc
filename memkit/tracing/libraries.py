"""What libraries take that a trace does not know: convolutions, recurrent layers, packed products, compiled steps.

How much is decided by the library's own choice among kernels. So it is told, once for each library, with a size
where the shapes bound it.
"""

import warnings
from itertools import accumulate

import torch
from torch import Tensor

from memkit.program.doors import tensors_in
from memkit.timeline import MemoryTimeline
from memkit.units import format_bytes

aten = torch.ops.aten
TOLD_FROM = 1.001
"""A size that is known is told where, with what stands then, it is above the traced peak by a thousandth."""


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
    """What each library takes besides: size in bytes (None: unknown), operation, place, and how far the log was."""

    def __init__(self):
        self.notes: dict[str, list[tuple[int | None, str, str, int]]] = {}

    def note(self, library: str, num_bytes: int | None, op: str, place: str, position: int) -> None:
        """One operation has run, after ``position`` events of the log."""
        if num_bytes != 0:
            self.notes.setdefault(library, []).append((num_bytes, op, place, position))

    def tell(self, timeline: MemoryTimeline) -> None:
        """Warn once for each library whose share is unknown, or would have raised the peak."""
        totals = [0, *accumulate(event.num_bytes for event in timeline.events)]
        for library, notes in self.notes.items():
            known = [note for note in notes if note[0] is not None]
            highest = max(known, key=lambda note: totals[min(note[3], len(totals) - 1)] + note[0], default=None)
            chosen = next((note for note in notes if note[0] is None), highest)
            num_bytes, op, place, position = chosen
            if num_bytes and totals[min(position, len(totals) - 1)] + num_bytes <= timeline.peak_bytes * TOLD_FROM:
                continue
            size = f", about {format_bytes(num_bytes)}" if num_bytes else ""
            where = f"{place}: " if place else ""
            text = f"{where}{op}: the workspace that {library} takes is not in the trace{size}"
            warnings.warn(text, stacklevel=3)
