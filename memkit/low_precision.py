"""Training in 16 bits (chapter 03): what autocast casts, and how BF16 weights are updated.

**Autocast** on CUDA has four lists of names, its policies. What is in none of them runs in its inputs' dtype.
``memkit.tracing.cuda`` applies them; the formula's layers write their casts themselves.

**AdamW** has three ways to write an update into a number that is too coarse for it; chapter 03 writes a fourth,
rounding by chance, as a subclass in its cell:

    nearest   round to the nearest BF16 value; a small update is lost                8 B per parameter
    kahan     keep in a second BF16 number what rounding took, add it next time      10
    master    keep the weight in float32 and hand out a rounded copy                 16

Sources: ATen/autocast_mode.h (a test reads the installed header); Micikevicius et al. 2018 (arXiv:1710.03740) for the
master copy; Zamirai et al. 2020 (arXiv:2010.06192) for Kahan's sum in BF16 training.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from memkit.units import as_one_of

LOWER_PRECISION = """
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm
    chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
"""
"""Run in float16 or bfloat16: the inputs are cast down; a weight's cast is kept until autocast is left."""

FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
    layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
    triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm
    logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
    upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
"""
"""Run in float32: the inputs are cast up."""

FLOAT32_OUTPUT = (
    "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm"
)
"""Asked for a float32 result (``dtype=``) where the caller names no dtype."""

PROMOTE = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)
"""Run in the widest dtype among the inputs."""

WRITES = ("nearest", "kahan", "master")


def add_with_memory(weight: Tensor, lost: Tensor, update: Tensor) -> None:
    """``weight += update`` in place, both BF16; ``lost`` remembers what rounding took (Kahan 1965)."""
    wanted = weight.float() + (lost.float() + update)
    weight.copy_(wanted)
    lost.copy_(wanted - weight.float())


class SixteenBitAdamW(torch.optim.Optimizer):
    """AdamW whose ``write`` is one of ``WRITES``; the arithmetic of one tensor at a time is float32.

    Moments have the dtype of the weights, float32 beside a master copy. ``copies_gradients`` also keeps a
    float32 copy of the gradients.

    Raises: ValueError: an unknown ``write``.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor | dict],
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.01,
        *,
        write: str = "nearest",
        copies_gradients: bool = False,
    ):
        as_one_of("write", write, WRITES)
        super().__init__(
            parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self.write, self.copies_gradients = write, copies_gradients

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.move(weight, self.state[weight], **group)

    def move(self, weight: Tensor, state: dict, lr, betas, eps, weight_decay, **_) -> None:
        """One tensor's step."""
        if not state:
            self.start(weight, state)
        gradient = weight.grad.float()
        if self.copies_gradients:
            gradient = state["gradient"].copy_(gradient)
        state["step"] += 1
        for name, value, beta in (
            ("exp_avg", gradient, betas[0]),
            ("exp_avg_sq", gradient * gradient, betas[1]),
        ):
            state[name].copy_(torch.lerp(state[name].float(), value, 1 - beta))
        mean = state["exp_avg"].float() / (1 - betas[0] ** state["step"])
        square = state["exp_avg_sq"].float() / (1 - betas[1] ** state["step"])
        old = state.get("master", weight).float()
        update = -lr * (mean / (square.sqrt() + eps) + weight_decay * old)
        self.add(weight, state, old, update)

    def add(self, weight: Tensor, state: dict, old: Tensor, update: Tensor) -> None:
        """Write ``old + update`` the chosen way."""
        match self.write:
            case "nearest":
                weight.copy_(old + update)
            case "kahan":
                add_with_memory(weight, state["lost"], update)
            case "master":
                weight.copy_(state["master"].add_(update))

    def start(self, weight: Tensor, state: dict) -> None:
        """The states of one tensor, at its first step."""
        is_master = self.write == "master"
        moment_dtype = torch.float32 if is_master else weight.dtype
        state["step"] = 0
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(weight, dtype=moment_dtype)
        if is_master:
            state["master"] = weight.float()
        if self.write == "kahan":
            state["lost"] = torch.zeros_like(weight)
        if self.copies_gradients:
            state["gradient"] = torch.zeros_like(weight, dtype=torch.float32)
