"""What CUDA's autocast does with each operation: four lists of names, its policies.

What is in none of the lists runs in its inputs' dtype. ``memkit.tracing.cuda`` applies them; the formula's layers
write their casts themselves.

Source: ATen/autocast_mode.h; a test reads the installed header.
"""

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
