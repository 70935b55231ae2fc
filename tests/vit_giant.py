"""ViT-g of 1.1 B parameters and its fine-tuning, as torchao's table of optimizers on the host ran it.

Sources: ``vit_giant_patch14_dinov2`` of timm (40 blocks, width 1536, 24 heads, SwiGLU of 4096, layer scale), images of
224 pixels in 16 × 16 patches; ``benchmarks/benchmark_low_bit_adam.py`` of torchao: all in bf16, eager, every block
checkpointed, 32 images, 45 classes, AdamW fused.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, NUM_BLOCKS, NUM_HEADS, HIDDEN, PATCH, SIDE, NUM_CLASSES, BATCH = 1536, 40, 24, 4096, 14, 16, 45, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH, eps=1e-6), nn.LayerNorm(WIDTH, eps=1e-6)
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.scale_1, self.scale_2 = (nn.Parameter(torch.full((WIDTH,), 1e-5)) for _ in range(2))

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x)) * self.scale_1
        gate, up = self.up(self.norm_2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up) * self.scale_2


class ViTGiant(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Linear(3 * PATCH**2, WIDTH)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, SIDE**2 + 1, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH, eps=1e-6), nn.Linear(WIDTH, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        patches = images.unflatten(2, (SIDE, PATCH)).unflatten(4, (SIDE, PATCH)).permute(0, 2, 4, 1, 3, 5)
        x = self.patches(patches.reshape(len(images), SIDE**2, -1))
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x)[:, 0])


def fine_tuning(make_optimizer):
    """The ``build`` of the run with this optimizer."""

    def build():
        model = ViTGiant().bfloat16().cuda()
        optimizer = make_optimizer(model.parameters())

        def step():
            images = torch.zeros(BATCH, 3, SIDE * PATCH, SIDE * PATCH, dtype=torch.bfloat16, device="cuda")
            labels = torch.zeros(BATCH, dtype=torch.long, device="cuda")
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build
