// Functionals of torch/nn/functional.h.
#include "tests/memory/torch_nn_rows.h"

namespace levin::testing {
namespace {

namespace F = torch::nn::functional;

using Sizes = std::vector<int64_t>;

const NnInput kRows{{256, 64}}, kSignal{{8, 16, 128}}, kImages{{4, 8, 24, 24}}, kVolume{{2, 8, 10, 12, 12}};
const NnInput kClasses{{256}, 64}, kPixels{{4, 24, 24}, 8};

void add_activations(std::vector<NnRow>& rows) {
  const auto add = [&](const char* name, auto call) {
    rows.push_back(functional_row(name, {kRows}, [call](const Tensors& x) { return call(x[0]); }));
  };
  add("elu", [](const Tensor& x) { return F::elu(x); });
  add("selu", [](const Tensor& x) { return F::selu(x); });
  add("hardshrink", [](const Tensor& x) { return F::hardshrink(x); });
  add("hardtanh", [](const Tensor& x) { return F::hardtanh(x, F::HardtanhFuncOptions().min_val(-0.5)); });
  add("leaky_relu", [](const Tensor& x) { return F::leaky_relu(x); });
  add("logsigmoid", [](const Tensor& x) { return F::logsigmoid(x); });
  add("gumbel_softmax", [](const Tensor& x) { return F::gumbel_softmax(x, F::GumbelSoftmaxFuncOptions().dim(1)); });
  add("gumbel_softmax hard",
      [](const Tensor& x) { return F::gumbel_softmax(x, F::GumbelSoftmaxFuncOptions().dim(1).hard(true)); });
  add("softmax", [](const Tensor& x) { return F::softmax(x, 1); });
  add("softmax columns", [](const Tensor& x) { return F::softmax(x, 0); });
  add("softmax dtype", [](const Tensor& x) { return F::softmax(x, F::SoftmaxFuncOptions(1).dtype(torch::kFloat)); });
  add("softmin", [](const Tensor& x) { return F::softmin(x, 1); });
  add("log_softmax", [](const Tensor& x) { return F::log_softmax(x, 1); });
  add("glu", [](const Tensor& x) { return F::glu(x, F::GLUFuncOptions(0)); });
  add("gelu", [](const Tensor& x) { return F::gelu(x); });
  add("silu", [](const Tensor& x) { return F::silu(x); });
  add("mish", [](const Tensor& x) { return F::mish(x); });
  add("relu", [](const Tensor& x) { return F::relu(x); });
  add("relu6", [](const Tensor& x) { return F::relu6(x); });
  add("rrelu", [](const Tensor& x) { return F::rrelu(x, F::RReLUFuncOptions().training(true)); });
  add("rrelu eval", [](const Tensor& x) { return F::rrelu(x); });
  add("celu", [](const Tensor& x) { return F::celu(x); });
  add("softplus", [](const Tensor& x) { return F::softplus(x); });
  add("softshrink", [](const Tensor& x) { return F::softshrink(x); });
  add("softsign", [](const Tensor& x) { return F::softsign(x); });
  add("tanhshrink", [](const Tensor& x) { return F::tanhshrink(x); });
  add("threshold", [](const Tensor& x) { return F::threshold(x, F::ThresholdFuncOptions(0.1, 0.2)); });
  add("hardswish", [](const Tensor& x) { return torch::hardswish(x); });
  add("hardsigmoid", [](const Tensor& x) { return torch::hardsigmoid(x); });
  add("dropout", [](const Tensor& x) { return F::dropout(x, F::DropoutFuncOptions().p(0.3)); });
  add("alpha_dropout",
      [](const Tensor& x) { return F::alpha_dropout(x, F::AlphaDropoutFuncOptions().training(true)); });
  add("feature_alpha_dropout",
      [](const Tensor& x) { return F::feature_alpha_dropout(x, F::FeatureAlphaDropoutFuncOptions().training(true)); });
  add("normalize", [](const Tensor& x) { return F::normalize(x); });
  add("layer_norm", [](const Tensor& x) { return F::layer_norm(x, F::LayerNormFuncOptions({64})); });
  add("pdist", [](const Tensor& x) { return F::pdist(x); });
  add("linear", [](const Tensor& x) { return F::linear(x, x.narrow(0, 0, 32)); });
  rows.push_back(functional_row("prelu", {kImages, {{8}}}, [](const Tensors& x) { return F::prelu(x[0], x[1]); }));
  rows.push_back(functional_row("bilinear", {kRows, kRows, {{4, 64, 64}}},
                                [](const Tensors& x) { return F::bilinear(x[0], x[1], x[2]); }));
  rows.push_back(
      functional_row("multi_head_attention_forward", {{{16, 8, 32}}, {{96, 32}}, {{32, 32}}}, [](const Tensors& x) {
        return std::get<0>(F::multi_head_attention_forward(
            x[0], x[0], x[0],
            F::MultiheadAttentionForwardFuncOptions(32, 4, x[1], torch::zeros({96}, x[1].options()), {}, {}, false, 0.0,
                                                    x[2], torch::zeros({32}, x[2].options()))));
      }));
}

void add_layers(std::vector<NnRow>& rows) {
  const auto add = [&](const char* name, const NnInput& input, auto call) {
    rows.push_back(functional_row(name, {input}, [call](const Tensors& x) { return call(x[0]); }));
  };
  rows.push_back(
      functional_row("conv1d", {kSignal, {{16, 16, 5}}}, [](const Tensors& x) { return F::conv1d(x[0], x[1]); }));
  rows.push_back(functional_row("conv2d", {kImages, {{8, 8, 3, 3}}}, [](const Tensors& x) {
    return F::conv2d(x[0], x[1], F::Conv2dFuncOptions().padding(torch::kSame));
  }));
  rows.push_back(
      functional_row("conv3d", {kVolume, {{8, 8, 3, 3, 3}}}, [](const Tensors& x) { return F::conv3d(x[0], x[1]); }));
  rows.push_back(functional_row("conv_transpose1d", {kSignal, {{16, 16, 5}}},
                                [](const Tensors& x) { return F::conv_transpose1d(x[0], x[1]); }));
  rows.push_back(functional_row("conv_transpose2d", {kImages, {{8, 8, 3, 3}}}, [](const Tensors& x) {
    return F::conv_transpose2d(x[0], x[1], F::ConvTranspose2dFuncOptions().stride(2));
  }));
  rows.push_back(functional_row("conv_transpose3d", {kVolume, {{8, 8, 3, 3, 3}}},
                                [](const Tensors& x) { return F::conv_transpose3d(x[0], x[1]); }));
  rows.push_back(functional_row("batch_norm", {kImages}, [](const Tensors& x) {
    const auto options = x[0].options().requires_grad(false);
    return F::batch_norm(x[0], torch::zeros({8}, options), torch::ones({8}, options),
                         F::BatchNormFuncOptions().training(true));
  }));
  add("instance_norm", kImages, [](const Tensor& x) { return F::instance_norm(x); });
  add("group_norm", kImages, [](const Tensor& x) { return F::group_norm(x, F::GroupNormFuncOptions(4)); });
  add("local_response_norm", kImages,
      [](const Tensor& x) { return F::local_response_norm(x, F::LocalResponseNormFuncOptions(2)); });
  add("dropout2d", kImages, [](const Tensor& x) { return F::dropout2d(x); });
  add("dropout3d", kVolume, [](const Tensor& x) { return F::dropout3d(x); });
  add("fold", {{8, 36, 64}}, [](const Tensor& x) { return F::fold(x, F::FoldFuncOptions({10, 10}, {3, 3})); });
  add("unfold", kImages, [](const Tensor& x) { return F::unfold(x, F::UnfoldFuncOptions(3).dilation(2)); });
  add("pixel_shuffle", kImages, [](const Tensor& x) { return F::pixel_shuffle(x, F::PixelShuffleFuncOptions(2)); });
  add("pixel_unshuffle", kImages,
      [](const Tensor& x) { return F::pixel_unshuffle(x, F::PixelUnshuffleFuncOptions(2)); });
  for (const auto* images : {"constant", "reflect", "replicate", "circular"}) {
    const std::string mode = images;
    rows.push_back(functional_row("pad " + mode, {kImages}, [mode](const Tensors& x) {
      auto options = F::PadFuncOptions({1, 2, 3, 0});
      if (mode == "reflect") options.mode(torch::kReflect);
      if (mode == "replicate") options.mode(torch::kReplicate);
      if (mode == "circular") options.mode(torch::kCircular);
      return F::pad(x[0], options);
    }));
  }
  add("interpolate", kImages, [](const Tensor& x) {
    return F::interpolate(
        x, F::InterpolateFuncOptions().size(Sizes{31, 40}).mode(torch::kBilinear).align_corners(false).antialias(true));
  });
  add("interpolate area", kImages, [](const Tensor& x) {
    return F::interpolate(x,
                          F::InterpolateFuncOptions().scale_factor(std::vector<double>{0.5, 0.5}).mode(torch::kArea));
  });
  add("interpolate nearest exact", kVolume, [](const Tensor& x) {
    return F::interpolate(
        x, F::InterpolateFuncOptions().scale_factor(std::vector<double>{2, 2, 2}).mode(torch::kNearestExact));
  });
  for (const auto* mode : {"bilinear", "nearest", "bicubic"}) {
    const std::string how = mode;
    rows.push_back(functional_row("grid_sample " + how, {kImages, {{4, 20, 20, 2}}}, [how](const Tensors& x) {
      auto options = F::GridSampleFuncOptions().align_corners(false).padding_mode(torch::kBorder);
      if (how == "nearest") options.mode(torch::kNearest);
      Tensor grid = x[1].requires_grad() ? x[1] : x[1].clone().requires_grad_();
      return how == "bicubic" ? at::grid_sampler(x[0], grid, 2, 0, true) : F::grid_sample(x[0], grid, options);
    }));
  }
  rows.push_back(functional_row("grid_sample volume", {kVolume, {{2, 8, 8, 8, 3}}}, [](const Tensors& x) {
    return F::grid_sample(x[0], x[1], F::GridSampleFuncOptions().align_corners(true));
  }));
  rows.push_back(functional_row("affine_grid", {{{8, 2, 3}}}, [](const Tensors& x) {
    return F::affine_grid(x[0], {8, 3, 32, 32}, false);
  }));
}

void add_pools(std::vector<NnRow>& rows) {
  const auto add = [&](const char* name, const NnInput& input, auto call) {
    rows.push_back(functional_row(name, {input}, [call](const Tensors& x) { return call(x[0]); }));
  };
  add("avg_pool1d", kSignal, [](const Tensor& x) { return F::avg_pool1d(x, F::AvgPool1dFuncOptions(2)); });
  add("avg_pool2d", kImages, [](const Tensor& x) { return F::avg_pool2d(x, F::AvgPool2dFuncOptions(2)); });
  add("avg_pool3d", kVolume, [](const Tensor& x) { return F::avg_pool3d(x, F::AvgPool3dFuncOptions(2)); });
  add("max_pool1d", kSignal, [](const Tensor& x) { return F::max_pool1d(x, F::MaxPool1dFuncOptions(2)); });
  add("max_pool2d", kImages, [](const Tensor& x) { return F::max_pool2d(x, F::MaxPool2dFuncOptions(2)); });
  add("max_pool3d", kVolume, [](const Tensor& x) { return F::max_pool3d(x, F::MaxPool3dFuncOptions(2)); });
  add("max_pool1d_with_indices", kSignal,
      [](const Tensor& x) { return std::get<0>(F::max_pool1d_with_indices(x, F::MaxPool1dFuncOptions(2))); });
  add("max_pool2d_with_indices", kImages,
      [](const Tensor& x) { return std::get<0>(F::max_pool2d_with_indices(x, F::MaxPool2dFuncOptions(2))); });
  add("max_pool3d_with_indices", kVolume,
      [](const Tensor& x) { return std::get<0>(F::max_pool3d_with_indices(x, F::MaxPool3dFuncOptions(2))); });
  add("adaptive_avg_pool1d", kSignal,
      [](const Tensor& x) { return F::adaptive_avg_pool1d(x, F::AdaptiveAvgPool1dFuncOptions(9)); });
  add("adaptive_avg_pool2d", kImages,
      [](const Tensor& x) { return F::adaptive_avg_pool2d(x, F::AdaptiveAvgPool2dFuncOptions(9)); });
  add("adaptive_avg_pool3d", kVolume,
      [](const Tensor& x) { return F::adaptive_avg_pool3d(x, F::AdaptiveAvgPool3dFuncOptions(1)); });
  add("adaptive_max_pool1d", kSignal,
      [](const Tensor& x) { return F::adaptive_max_pool1d(x, F::AdaptiveMaxPool1dFuncOptions(9)); });
  add("adaptive_max_pool2d", kImages,
      [](const Tensor& x) { return F::adaptive_max_pool2d(x, F::AdaptiveMaxPool2dFuncOptions(9)); });
  add("adaptive_max_pool3d", kVolume,
      [](const Tensor& x) { return F::adaptive_max_pool3d(x, F::AdaptiveMaxPool3dFuncOptions(3)); });
  add("adaptive_max_pool1d_with_indices", kSignal, [](const Tensor& x) {
    return std::get<0>(F::adaptive_max_pool1d_with_indices(x, F::AdaptiveMaxPool1dFuncOptions(9)));
  });
  add("adaptive_max_pool2d_with_indices", kImages, [](const Tensor& x) {
    return std::get<0>(F::adaptive_max_pool2d_with_indices(x, F::AdaptiveMaxPool2dFuncOptions(9)));
  });
  add("adaptive_max_pool3d_with_indices", kVolume, [](const Tensor& x) {
    return std::get<0>(F::adaptive_max_pool3d_with_indices(x, F::AdaptiveMaxPool3dFuncOptions(3)));
  });
  add("fractional_max_pool2d", kImages,
      [](const Tensor& x) { return F::fractional_max_pool2d(x, F::FractionalMaxPool2dFuncOptions(2).output_size(9)); });
  add("fractional_max_pool3d", kVolume,
      [](const Tensor& x) { return F::fractional_max_pool3d(x, F::FractionalMaxPool3dFuncOptions(2).output_size(4)); });
  add("fractional_max_pool2d_with_indices", kImages, [](const Tensor& x) {
    return std::get<0>(F::fractional_max_pool2d_with_indices(x, F::FractionalMaxPool2dFuncOptions(2).output_size(9)));
  });
  add("fractional_max_pool3d_with_indices", kVolume, [](const Tensor& x) {
    return std::get<0>(F::fractional_max_pool3d_with_indices(x, F::FractionalMaxPool3dFuncOptions(2).output_size(4)));
  });
  add("lp_pool1d", kSignal, [](const Tensor& x) { return F::lp_pool1d(x, F::LPPool1dFuncOptions(2, 3)); });
  add("lp_pool2d", kImages, [](const Tensor& x) { return F::lp_pool2d(x, F::LPPool2dFuncOptions(2, 3)); });
  add("lp_pool3d", kVolume, [](const Tensor& x) { return F::lp_pool3d(x, F::LPPool3dFuncOptions(2, 3)); });
  add("max_unpool1d", kSignal, [](const Tensor& x) {
    auto [y, indices] = F::max_pool1d_with_indices(x, F::MaxPool1dFuncOptions(2));
    return F::max_unpool1d(y, indices, F::MaxUnpool1dFuncOptions(2));
  });
  add("max_unpool2d", kImages, [](const Tensor& x) {
    auto [y, indices] = F::max_pool2d_with_indices(x, F::MaxPool2dFuncOptions(2));
    return F::max_unpool2d(y, indices, F::MaxUnpool2dFuncOptions(2));
  });
  add("max_unpool3d", kVolume, [](const Tensor& x) {
    auto [y, indices] = F::max_pool3d_with_indices(x, F::MaxPool3dFuncOptions(2));
    return F::max_unpool3d(y, indices, F::MaxUnpool3dFuncOptions(2));
  });
}

void add_embeddings(std::vector<NnRow>& rows) {
  rows.push_back(functional_row("embedding", {{{256}, 100}, {{100, 64}}},
                                [](const Tensors& x) { return F::embedding(x[0], x[1].clone().requires_grad_()); }));
  rows.push_back(functional_row("embedding_bag", {{{64, 8}, 100}, {{100, 64}}, {{64, 8}}}, [](const Tensors& x) {
    return F::embedding_bag(
        x[0], x[1].clone().requires_grad_(),
        F::EmbeddingBagFuncOptions().mode(torch::kSum).per_sample_weights(x[2].clone().requires_grad_()));
  }));
  rows.push_back(
      functional_row("one_hot", {kRows, kClasses}, [](const Tensors& x) { return x[0] * F::one_hot(x[1], 64); }));
  rows.push_back(functional_row("one_hot counted", {kRows, kClasses},
                                [](const Tensors& x) { return x[0].sum() * F::one_hot(x[1]); }));
  rows.back().refused = "aten::";
  rows.push_back(functional_row("cosine_similarity", {kRows, kRows},
                                [](const Tensors& x) { return F::cosine_similarity(x[0], x[1]); }));
  rows.push_back(functional_row("pairwise_distance", {kRows, kRows}, [](const Tensors& x) {
    return F::pairwise_distance(x[0], x[1], F::PairwiseDistanceFuncOptions().p(1).keepdim(true));
  }));
  rows.push_back(functional_row("cdist", {kRows, kRows}, [](const Tensors& x) { return at::cdist(x[0], x[1]); }));
}

void add_losses(std::vector<NnRow>& rows) {
  const auto add = [&](const char* name, auto call) {
    rows.push_back(functional_row(name, {kRows, kRows}, [call](const Tensors& x) { return call(x[0], x[1]); }));
  };
  add("l1_loss", [](const Tensor& x, const Tensor& y) { return F::l1_loss(x, y); });
  add("mse_loss", [](const Tensor& x, const Tensor& y) { return F::mse_loss(x, y); });
  add("mse_loss broadcast",
      [](const Tensor& x, const Tensor& y) { return F::mse_loss(x, y.narrow(0, 0, 1).expand_as(x)); });
  add("kl_div", [](const Tensor& x, const Tensor& y) { return F::kl_div(x.log_softmax(1), y.softmax(1)); });
  add("binary_cross_entropy",
      [](const Tensor& x, const Tensor& y) { return F::binary_cross_entropy(x.sigmoid(), y.sigmoid()); });
  add("binary_cross_entropy_with_logits",
      [](const Tensor& x, const Tensor& y) { return F::binary_cross_entropy_with_logits(x, y); });
  add("hinge_embedding_loss", [](const Tensor& x, const Tensor& y) { return F::hinge_embedding_loss(x, y); });
  add("multilabel_soft_margin_loss",
      [](const Tensor& x, const Tensor& y) { return F::multilabel_soft_margin_loss(x, y); });
  add("soft_margin_loss", [](const Tensor& x, const Tensor& y) { return F::soft_margin_loss(x, y); });
  add("smooth_l1_loss",
      [](const Tensor& x, const Tensor& y) { return F::smooth_l1_loss(x, y, F::SmoothL1LossFuncOptions().beta(0.5)); });
  add("huber_loss", [](const Tensor& x, const Tensor& y) { return F::huber_loss(x, y); });
  add("poisson_nll_loss", [](const Tensor& x, const Tensor& y) { return F::poisson_nll_loss(x, y); });
  add("margin_ranking_loss",
      [](const Tensor& x, const Tensor& y) { return F::margin_ranking_loss(x, y, torch::ones_like(y)); });
  add("triplet_margin_loss", [](const Tensor& x, const Tensor& y) { return F::triplet_margin_loss(x, y, y + 1); });
  add("triplet_margin_with_distance_loss",
      [](const Tensor& x, const Tensor& y) { return F::triplet_margin_with_distance_loss(x, y, y + 1); });
  add("cosine_embedding_loss",
      [](const Tensor& x, const Tensor& y) { return F::cosine_embedding_loss(x, y, torch::ones({256}, y.options())); });
  rows.push_back(
      functional_row("nll_loss", {kRows, kClasses}, [](const Tensors& x) { return F::nll_loss(x[0], x[1]); }));
  rows.push_back(functional_row("nll_loss none", {kImages, kPixels}, [](const Tensors& x) {
    return F::nll_loss(x[0], x[1], F::NLLLossFuncOptions().reduction(torch::kNone));
  }));
  rows.push_back(functional_row("cross_entropy", {kImages, kPixels}, [](const Tensors& x) {
    return F::cross_entropy(x[0], x[1], F::CrossEntropyFuncOptions().reduction(torch::kSum));
  }));
  rows.push_back(functional_row("multi_margin_loss", {kRows, kClasses},
                                [](const Tensors& x) { return F::multi_margin_loss(x[0], x[1]); }));
  rows.push_back(functional_row("multilabel_margin_loss", {kRows, {{256, 64}, 64}}, [](const Tensors& x) {
    return F::multilabel_margin_loss(x[0], x[1], F::MultilabelMarginLossFuncOptions().reduction(torch::kNone));
  }));
  rows.push_back(functional_row("ctc_loss", {{{32, 8, 32}}, {{8, 10}, 31}}, [](const Tensors& x) {
    return torch::ctc_loss(x[0].log_softmax(2), x[1] + 1, std::vector<int64_t>(8, 32), std::vector<int64_t>(8, 10));
  }));
  rows.push_back(functional_row("ctc_loss tensors", {{{32, 8, 32}}, {{8, 10}, 31}}, [](const Tensors& x) {
    return F::ctc_loss(x[0].log_softmax(2), x[1] + 1, torch::full({8}, 32, torch::kLong),
                       torch::full({8}, 10, torch::kLong));
  }));
  rows.back().refused = "aten::ctc_loss";
}

/// What losses and models are written with beside them.
void add_operators(std::vector<NnRow>& rows) {
  const auto add = [&](const char* name, auto call) {
    rows.push_back(
        functional_row(std::string("torch::") + name, {kRows}, [call](const Tensors& x) { return call(x[0]); }));
  };
  add("std", [](const Tensor& x) { return x.std(1); });
  add("std all", [](const Tensor& x) { return x.std(); });
  add("var", [](const Tensor& x) { return x.var(1, false, true); });
  add("var_mean", [](const Tensor& x) { return std::get<0>(at::var_mean(x, 1)) + std::get<1>(at::var_mean(x, 1)); });
  add("cumsum", [](const Tensor& x) { return x.cumsum(0); });
  add("cumprod", [](const Tensor& x) { return x.cumprod(1); });
  add("logcumsumexp", [](const Tensor& x) { return x.logcumsumexp(1); });
  add("cummax", [](const Tensor& x) { return std::get<0>(x.cummax(1)); });
  add("flip", [](const Tensor& x) { return x.flip({0, 1}); });
  add("roll", [](const Tensor& x) { return x.roll({3}, {1}); });
  add("max", [](const Tensor& x) { return x * x.max(); });
  add("min", [](const Tensor& x) { return x * x.min(); });
  add("median", [](const Tensor& x) { return std::get<0>(x.median(1)); });
  add("kthvalue", [](const Tensor& x) { return std::get<0>(x.kthvalue(3, 1)); });
  add("sort", [](const Tensor& x) { return std::get<0>(x.sort(1)); });
  add("topk", [](const Tensor& x) { return std::get<0>(x.topk(5, 1)); });
  add("logsumexp", [](const Tensor& x) { return x.logsumexp(1); });
  add("norm", [](const Tensor& x) { return x.norm(2, 1); });
  add("where", [](const Tensor& x) { return torch::where(x > 0, x, x * 2); });
  add("multinomial", [](const Tensor& x) { return x.gather(1, x.detach().softmax(1).multinomial(3)); });
  add("bernoulli", [](const Tensor& x) { return x * at::bernoulli(x.detach().sigmoid()); });
  add("poisson", [](const Tensor& x) { return x * at::poisson(x.detach().exp()); });
  add("masked_fill", [](const Tensor& x) { return x.masked_fill(x > 1, 0.0); });
  add("tril", [](const Tensor& x) { return x.tril(); });
  add("index", [](const Tensor& x) {
    return x.index({torch::arange(10, x.options().dtype(torch::kLong).requires_grad(false))});
  });
  add("rfft", [](const Tensor& x) { return torch::fft::irfft(torch::fft::rfft(x) * 2); });
  add("searchsorted",
      [](const Tensor& x) { return x * torch::searchsorted(std::get<0>(x.detach().sort(1)), x.detach()); });
  add("dot", [](const Tensor& x) { return x.flatten().dot(x.flatten()); });
  add("trace", [](const Tensor& x) { return x * x.trace(); });
  add("unfold", [](const Tensor& x) { return x.unfold(1, 4, 2); });
  add("einsum", [](const Tensor& x) { return torch::einsum("bi,bj->ij", {x, x}); });
  add("mask", [](const Tensor& x) { return x.index({x > 0}); });
  rows.back().refused = "aten::nonzero";
  add("masked_select", [](const Tensor& x) { return x.masked_select(x > 0); });
  rows.back().refused = "aten::masked_select";
  add("item", [](const Tensor& x) { return x * x.sum().item<double>(); });
  rows.back().refused = "aten::_local_scalar_dense";
  add("unique", [](const Tensor& x) { return std::get<0>(at::_unique2(x.detach())).sum() * x; });
  rows.back().refused = "aten::_unique2";
}

}  // namespace

std::vector<NnRow> functional_rows() {
  std::vector<NnRow> rows;
  add_activations(rows);
  add_layers(rows);
  add_pools(rows);
  add_embeddings(rows);
  add_losses(rows);
  add_operators(rows);
  return rows;
}

}  // namespace levin::testing
