"""Policies of `torch.autocast`, by operator: a table for each device.

Names are those of ATen, tables those of `ATen/autocast_mode.{h,cpp}` of torch 2.12, less the
operators that the torch at hand has no policy for (2.8 has none for `rms_norm`). Where torch calls
an operator with `dtype=float32`, its operands are cast to fp32 here, with the same results.
On a GPU `binary_cross_entropy` raises in torch; here it is computed as on a CPU.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import torch


class Policy(enum.Enum):
    """What the fp16, bf16 and fp32 operands of a call become."""

    LOWER = "the dtype of autocast"
    FLOAT32 = "fp32"
    PROMOTE = "fp32 if one of them is, else the dtype of autocast"


_LOWER_EVERYWHERE = """
    _convolution addbmm addmm baddbmm bmm conv1d conv2d conv3d conv_tbc conv_transpose1d
    conv_transpose2d conv_transpose3d linalg_vecdot linear matmul mm prelu
    scaled_dot_product_attention
"""
_FLOAT32_EVERYWHERE = """
    binary_cross_entropy binary_cross_entropy_with_logits cdist cosine_embedding_loss
    hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss nll_loss nll_loss2d poisson_nll_loss prod smooth_l1_loss
    soft_margin_loss triplet_margin_loss
"""

_CPU = {
    Policy.LOWER: """
        _addmm_activation _native_multi_head_attention mkldnn_rnn_layer
    """,
    Policy.FLOAT32: """
        _grid_sampler_2d_cpu_fallback _lu_with_info adaptive_avg_pool3d adaptive_max_pool3d
        avg_pool3d cholesky cholesky_inverse cholesky_solve cross_entropy_loss ctc_loss
        fake_quantize_per_tensor_affine fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2
        fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn
        fractional_max_pool2d fractional_max_pool3d geqrf grid_sampler grid_sampler_2d
        grid_sampler_3d inverse linalg_cholesky linalg_cholesky_ex linalg_cond linalg_eig
        linalg_eigh linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv
        linalg_inv_ex linalg_lstsq linalg_matrix_rank linalg_qr linalg_solve linalg_svd
        linalg_svdvals linalg_tensorinv linalg_tensorsolve lu_solve max_pool3d max_unpool2d
        max_unpool3d multilabel_margin_loss_forward nanquantile orgqr ormqr pinverse polar qr
        quantile reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d
        replication_pad3d stft svd trace triangular_solve view_as_complex
    """,
    Policy.PROMOTE: "cat index_copy stack",
}
_CUDA = {
    Policy.LOWER: """
        _cudnn_rnn _scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell
        addmv addr chain_matmul convolution cudnn_convolution cudnn_convolution_transpose einsum
        gru_cell linalg_multi_dot lstm_cell mv rnn_relu_cell rnn_tanh_cell
    """,
    Policy.FLOAT32: """
        _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d acos asin cosh cosine_similarity cumprod
        cumsum dist erfinv exp expm1 frobenius_norm group_norm layer_norm linalg_matrix_norm
        linalg_vector_norm log log10 log1p log2 log_softmax logsumexp native_layer_norm norm
        nuclear_norm pdist pow reciprocal renorm rms_norm rsqrt sinh softmax softplus sum tan
        upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
        upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    """,
    Policy.PROMOTE: """
        addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot
    """,
}
_EVERYWHERE = {Policy.LOWER: _LOWER_EVERYWHERE, Policy.FLOAT32: _FLOAT32_EVERYWHERE}


def _has_policy(operator: str, device: str) -> bool:
    """True if the torch at hand casts the operands of an operator under autocast."""
    overloads = torch._C._jit_get_schemas_for_operator(f"aten::{operator}")
    names = (f"{o.name}.{o.overload_name}".removesuffix(".") for o in overloads)
    key = f"Autocast{device.upper()}"
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for name in names)


POLICIES: Mapping[str, Mapping[str, Policy]] = {
    device: {
        name: policy
        for own in (_EVERYWHERE, table)
        for policy in own
        for name in own[policy].split()
        if _has_policy(name, device)
    }
    for device, table in (("cpu", _CPU), ("cuda", _CUDA))
}
"""By device and operator."""
