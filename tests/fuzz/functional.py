"""The table of torch.nn.functional: interpolations, pools, borders, losses, lookups, norms."""

from __future__ import annotations

from tests.fuzz.tables import Row

_SPATIAL = (1, 2, 3)

_IMAGES = (
    *(Row(f"F.interpolate({{x}}{{as_{k}d}}, {{interpolated_{k}d}})", "f", 3) for k in _SPATIAL),
    Row("F.interpolate({x}{as_2d}, {interpolated_2d})", "f", 2),
    *(Row(f"F.max_pool{k}d({{x}}{{as_{k}d}}, {{pooled_{k}d}})", "f") for k in _SPATIAL),
    *(Row(f"F.avg_pool{k}d({{x}}{{as_{k}d}}, {{pooled_{k}d}})", "f") for k in _SPATIAL),
    *(
        Row(
            f"F.max_pool{k}d({{x}}{{as_{k}d}}, {{pooled_{k}d}}, return_indices=True)",
            "f",
            0.4,
        )
        for k in _SPATIAL
    ),
    Row("F.avg_pool2d({x}{as_2d}, {pooled_2d}, count_include_pad={bool})", "f", 0.5),
    Row("F.avg_pool3d({x}{as_3d}, 2, divisor_override={count})", "f", 0.4),
    Row("F.avg_pool2d({x}{as_2d}, 2, 1, divisor_override={count})", "f", 0.4),
    *(
        Row(
            f"F.adaptive_{pool}_pool{k}d({{x}}{{as_{k}d}}, {{adapted_{k}d}})",
            "f",
            0.6,
        )
        for k in _SPATIAL
        for pool in ("avg", "max")
    ),
    *(Row(f"F.lp_pool{k}d({{x}}{{as_{k}d}}, {{positive}}, 2)", "f", 0.2) for k in _SPATIAL),
    *(
        Row(
            f"F.max_unpool{k}d(*F.max_pool{k}d({{x}}{{as_{k}d}}, {{count}}, return_indices=True), "
            "{count})",
            "f",
            0.4,
        )
        for k in _SPATIAL
    ),
    *(
        Row(
            f"F.max_unpool{k}d(*F.max_pool{k}d({{x}}{{as_{k}d}}, 2, return_indices=True), 2, "
            f"output_size={{x}}{{as_{k}d}}.shape)",
            "f",
            0.3,
        )
        for k in _SPATIAL
    ),
    *(Row(f"F.fractional_max_pool{k}d({{x}}{{as_{k}d}}, {{fractions_{k}d}})", "f") for k in (2, 3)),
    Row("F.pixel_shuffle({x}{as_2d}.repeat(1, 4, 1, 1), 2)", "fi", 0.6),
    Row("F.pixel_unshuffle({x}{as_2d}.repeat(1, 1, 2, 2), 2)", "fi", 0.6),
    Row("F.channel_shuffle({x}{as_2d}.repeat(1, 2, 1, 1), 2)", "fi", 0.6),
    Row("F.unfold({x}{as_2d}, {unfolded})", "f"),
    *(
        Row(f"F.fold(F.unfold({{x}}{{as_2d}}, {how}), {{x}}{{as_2d}}.shape[2:], {how})", "f", 0.3)
        for how in ("2, 1, 1, 1", "3, 1, 1, 2", "2, 2, 1, 1")
    ),
    *(Row(f"F.pad({{x}}{{as_{k}d}}, {{borders_{k}d}})", "fi") for k in _SPATIAL),
    *(Row(f"F.grid_sample({{x}}{{as_{k}d}}, {{sampled_{k}d}})", "f", 0.5) for k in (2, 3)),
    Row("F.affine_grid({affine})", "f", 0.4),
    *(Row(f"F.conv{k}d({{x}}{{as_{k}d}}, {{convolved_{k}d}})", "f", 0.4) for k in _SPATIAL),
    *(Row(f"F.conv_transpose{k}d({{x}}{{as_{k}d}}, {{spread_{k}d}})", "f", 0.3) for k in _SPATIAL),
    Row("F.local_response_norm({x}{as_1d}, {count}{of_response})", "f", 0.5),
    Row("F.instance_norm({x}{as_2d}.clamp(-1e4, 1e4){of_instances})", "f", 0.5),
    Row("F.rms_norm({x}, {x}.shape[-1:], {last})", "f", 0.6),
    Row("F.rms_norm({x}, {x}.shape[-2:])", "f", 0.4),
)

_LOSSES = (
    Row("F.l1_loss({x}, {like}{reduced})", "f", 0.6),
    Row("F.mse_loss({x}, {like}{reduced})", "f", 0.3),
    Row("F.mse_loss({x}, {like}, weight={like}{reduced})", "f", 0.3),
    Row("F.smooth_l1_loss({x}, {like}{of_bilinear_loss})", "f", 0.6),
    Row("F.huber_loss({x}, {like}{of_huber})", "f", 0.6),
    Row("F.kl_div({x}, {like}{of_kl})", "f", 0.6),
    Row("F.kl_div(F.log_softmax({x}, -1), torch.softmax({like}, -1){of_kl})", "f", 0.4),
    Row("F.binary_cross_entropy(torch.sigmoid({x}), {labels}{reduced})", "f", 0.5),
    Row("F.binary_cross_entropy(torch.sigmoid({x}), {labels}, {labels}{reduced})", "f", 0.4),
    Row("F.binary_cross_entropy_with_logits({x}, {labels}{reduced})", "f", 0.5),
    Row("F.binary_cross_entropy_with_logits({x}, {like}, {last}{reduced})", "f", 0.4),
    Row("F.binary_cross_entropy_with_logits({x}, {labels}, pos_weight={last}{reduced})", "f", 0.5),
    Row("F.nll_loss({x}, {classes}, {weights}.detach(){of_nll})", "f", 0.5),
    Row("F.cross_entropy({x}, {classes}, {weights}.detach(){of_nll})", "f", 0.5),
    Row(
        "F.cross_entropy({x}, {classes}, {weights}.detach(), label_smoothing=0.25{of_nll})",
        "f",
        0.5,
    ),
    Row("F.cross_entropy({x}, {like}{reduced})", "f", 0.4),
    Row("F.cross_entropy({x}, {like}, {weights}.detach(), label_smoothing=0.1{reduced})", "f", 0.3),
    Row("F.poisson_nll_loss({x}, {labels}{of_poisson})", "f", 0.5),
    Row("F.gaussian_nll_loss({x}, {like}, {like}.square(){of_gaussian})", "f", 0.5),
    Row("F.gaussian_nll_loss({x}, {like}, {positive}{of_gaussian})", "f", 0.2),
    Row("F.hinge_embedding_loss({x}, {signs}{margin})", "f", 0.5),
    Row("F.margin_ranking_loss({x}, {like}, {signs}{margin})", "f", 0.5),
    Row("F.soft_margin_loss({x}, {signs}{reduced})", "f", 0.5),
    Row("F.multilabel_soft_margin_loss({x}, {labels}{reduced})", "f", 0.4),
    Row("F.multilabel_soft_margin_loss({x}, {labels}, {last}{reduced})", "f", 0.3),
    Row("F.multilabel_margin_loss({x}, {several_classes}{reduced})", "f", 0.3),
    Row("F.multi_margin_loss({x}, {classes}.long(){of_multi_margin})", "f", 0.4),
    Row(
        "F.multi_margin_loss({x}, {classes}.long(), weight={weights}.detach(){of_multi_margin})",
        "f",
        0.3,
    ),
    Row("F.cosine_embedding_loss({x}, {like}, {sign_of_rows}{margin})", "f", 0.5),
    Row("F.triplet_margin_loss({x}, {like}, {like}{of_triplet})", "f", 0.5),
    Row("F.triplet_margin_with_distance_loss({x}, {like}, {like}, swap={bool})", "f", 0.3),
    Row("F.cosine_similarity({x}, {t}, {dim})", "f", 0.5),
    Row("F.pairwise_distance({x}, {like}{of_distance})", "f", 0.5),
    Row("F.ctc_loss({x}{as_1d}.log_softmax(-1), {transcripts})", "f", 0.5),
    Row("F.multilabel_margin_loss({x}.ravel(), {classes_of_all}, reduction='none')", "f", 0.2),
    Row("F.pdist({x}, {positive})", "f", 0.2),
    Row("torch.cdist({x}, {like}, {positive})", "f", 0.2),
)

_OTHERS = (
    Row("F.embedding({indices}, {x}{of_embedding})", "f", 0.5),
    Row("F.embedding_bag(weight={x}, {bags})", "f", 0.6),
    Row("F.bilinear({x}, {like}, {bilinear})", "f", 0.2),
    Row("F.prelu({x}, {channels})", "f", 0.4),
    Row("F.rrelu({x}, {n}, {n})", "f", 0.2),
    Row("F.elu({x}, {n})", "f", 0.3),
    Row("F.celu({x}, {positive})", "f", 0.3),
    Row("F.leaky_relu({x}, {n})", "f", 0.3),
    Row("F.softplus({x}, {positive}, {positive})", "f", 0.3),
    Row("F.hardshrink(torch.nan_to_num({x}), {positive})", "f", 0.3),
    Row("F.softshrink(torch.nan_to_num({x}), {positive})", "f", 0.3),
    Row("F.hardtanh({x}, {n}, {n})", "f", 0.3),
    *(Row(f"F.{name}({{x}}, {{positive}}, False)", "f", 0.1) for name in ("dropout", "dropout2d")),
    Row("F.normalize({x}, {positive}, {dim}, eps=0.5)", "f", 0.3),
)

FUNCTIONAL = (*_IMAGES, *_LOSSES, *_OTHERS)
