"""torchtune's head and loss: logits in pieces, all of them before the first loss, each loss one compiled kernel.

Its ``CEWithChunkedOutputLoss`` saves the float32 copies of the logits; the 16-bit ones all stand when the backward
starts. Where the head is the embedding, each piece's gradient of it is added to one that already stands.

Source: torchtune's ``torchtune/modules/loss/ce_chunked_output_loss.py`` and ``recipes/full_finetune_single_device.py``.
"""

import torch
from torch import Tensor

from stepscope.program.job import Transformer

NUM_PIECES, ROWS_AT_A_TIME = 8, 32


class CompiledLoss(torch.autograd.Function):
    """The summed cross-entropy of 16-bit logits with the memory of a compiled one, a few rows at a time in float32.

    Kept are the logits and a number a token; the backward makes their gradient in 16 bits.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor) -> Tensor:
        parts = [rows.float().logsumexp(1) for rows in logits.split(ROWS_AT_A_TIME)]
        log_sums = torch.cat(parts)
        ctx.save_for_backward(logits, targets, log_sums)
        return (log_sums - logits.gather(1, targets[:, None])[:, 0]).sum()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        logits, targets, log_sums = ctx.saved_tensors
        out = torch.empty_like(logits)
        for start in range(0, len(logits), ROWS_AT_A_TIME):
            rows = slice(start, start + ROWS_AT_A_TIME)
            out[rows] = (logits[rows].float() - log_sums[rows, None]).exp_().mul_(gradient)
        out.scatter_add_(1, targets[:, None], -gradient.to(out.dtype).expand(len(logits), 1))
        return out, None


class PiecesOfLogits(Transformer):
    """The transformer with this head and loss."""

    def forward(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        x_BSD, shared = self.token_embedding(inputs_BS), self.shared_tensors(inputs_BS)
        for stage in self.stages():
            x_BSD = stage(x_BSD, shared)
        pieces = [self.head(piece) for piece in self.norm(x_BSD).chunk(NUM_PIECES, dim=1)]
        targets = targets_BS.chunk(NUM_PIECES, dim=1)
        both = zip(pieces, targets, strict=True)
        return (
            sum(CompiledLoss.apply(p.flatten(0, 1), t.flatten()) for p, t in both)
            / targets_BS.numel()
        )
