"""The course's model with 3.4 B parameters as somebody else ran it on a B200, for ``test_b200.py``.

The model and AdamW are those of ``cs336_model.py``. Other than there, it is built on the card, the loss is torch's
own ``cross_entropy``, and blocks may be checkpointed in segments. A run that counts only the forward keeps one
number of its logits, and so all of them.
"""

from collections.abc import Callable

import torch
from cs336_model import AdamW, LanguageModel, Shape, autocast
from torch import Tensor
from torch.utils.checkpoint import checkpoint

XL = Shape(num_layers=32, hidden_size=2560, num_heads=32, ff_size=10_240)


class CheckpointedModel(LanguageModel):
    """The model with its blocks in ``num_segments`` checkpoints; twice the blocks: attention and MLP apart."""

    def __init__(self, shape: Shape, num_segments: int):
        super().__init__(shape)
        blocks = list(self.blocks)
        self.segments: list[Callable[[Tensor], Tensor]] = []
        if num_segments == 2 * len(blocks):
            for block in blocks:
                self.segments += [
                    lambda x, block=block: x + block.attention(block.norm_1(x)),
                    lambda x, block=block: x + block.feed_forward(block.norm_2(x)),
                ]
        else:
            length = -(-len(blocks) // num_segments)
            groups = [
                tuple(blocks[start : start + length]) for start in range(0, len(blocks), length)
            ]
            self.segments += [lambda x, group=group: in_turn(group, x) for group in groups]

    def forward(self, ids_BS: Tensor) -> Tensor:
        x = self.embedding(ids_BS)
        for segment in self.segments:
            x = checkpoint(segment, x, use_reentrant=False)
        return self.head(self.norm(x))


def in_turn(blocks: tuple, x: Tensor) -> Tensor:
    for block in blocks:
        x = block(x)
    return x


def run(shape: Shape, mode: str, *, is_autocast: bool = False, num_segments: int = 0):
    """The program for ``trace_memory``; ``mode`` is ``"forward"``, ``"backward"`` or ``"train"``."""

    def build():
        with torch.device("cuda"):
            model = CheckpointedModel(shape, num_segments) if num_segments else LanguageModel(shape)
        optimizer = AdamW(model.parameters()) if mode == "train" else None
        inputs = torch.randint(
            0, shape.vocab_size, (shape.batch_size, shape.seq_len), device="cuda"
        )
        targets = torch.randint(
            0, shape.vocab_size, (shape.batch_size, shape.seq_len), device="cuda"
        )

        def step():
            model.zero_grad(set_to_none=True)
            with autocast(is_autocast):
                logits = model(inputs)
                if mode == "forward":
                    return logits[0, 0, 0].detach()
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1).float(), targets.flatten()
                )
            loss.backward()
            if optimizer is not None:
                optimizer.step()
            return loss.detach()

        return step

    return build
