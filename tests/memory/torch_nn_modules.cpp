// Modules of torch/nn/modules.h but for recurrent ones and transformers.
#include "tests/memory/torch_nn_rows.h"

namespace levin::testing {
namespace {

namespace nn = torch::nn;

using Sizes = std::vector<int64_t>;

const Sizes kRows{256, 64}, kSignal{8, 16, 128}, kImages{4, 8, 24, 24}, kVolume{2, 8, 10, 12, 12};

void add_activations(std::vector<NnRow>& rows) {
  const auto add = [&](const char* name, auto factory) { rows.push_back(module_row(name, kRows, factory)); };
  add("ELU", [] { return nn::ELU(); });
  add("ELU inplace", [] { return nn::ELU(nn::ELUOptions().inplace(true)); });
  add("SELU", [] { return nn::SELU(); });
  add("Hardshrink", [] { return nn::Hardshrink(); });
  add("Hardtanh", [] { return nn::Hardtanh(); });
  add("Hardtanh inplace", [] { return nn::Hardtanh(nn::HardtanhOptions().inplace(true)); });
  add("LeakyReLU", [] { return nn::LeakyReLU(); });
  add("LeakyReLU inplace", [] { return nn::LeakyReLU(nn::LeakyReLUOptions().inplace(true)); });
  add("LogSigmoid", [] { return nn::LogSigmoid(); });
  add("Softmax", [] { return nn::Softmax(1); });
  add("Softmin", [] { return nn::Softmin(1); });
  add("LogSoftmax", [] { return nn::LogSoftmax(1); });
  rows.push_back(module_row("Softmax2d", kImages, [] { return nn::Softmax2d(); }));
  add("PReLU", [] { return nn::PReLU(); });
  rows.push_back(module_row("PReLU channels", kImages, [] { return nn::PReLU(nn::PReLUOptions().num_parameters(8)); }));
  add("ReLU", [] { return nn::ReLU(); });
  add("ReLU inplace", [] { return nn::ReLU(nn::ReLUOptions(true)); });
  add("ReLU6", [] { return nn::ReLU6(); });
  add("RReLU", [] { return nn::RReLU(); });
  add("CELU", [] { return nn::CELU(); });
  add("GLU", [] { return nn::GLU(1); });
  add("GELU", [] { return nn::GELU(); });
  add("GELU tanh", [] { return nn::GELU(nn::GELUOptions().approximate("tanh")); });
  add("SiLU", [] { return nn::SiLU(); });
  add("Mish", [] { return nn::Mish(); });
  add("Sigmoid", [] { return nn::Sigmoid(); });
  add("Softplus", [] { return nn::Softplus(); });
  add("Softshrink", [] { return nn::Softshrink(); });
  add("Softsign", [] { return nn::Softsign(); });
  add("Tanh", [] { return nn::Tanh(); });
  add("Tanhshrink", [] { return nn::Tanhshrink(); });
  add("Threshold", [] { return nn::Threshold(0.1, 0.2); });
  add("Identity", [] { return nn::Identity(); });
  add("Functional", [] { return nn::Functional(torch::relu); });
  add("Linear", [] { return nn::Linear(64, 64); });
  add("Linear no bias", [] { return nn::Linear(nn::LinearOptions(64, 64).bias(false)); });
  rows.push_back(module_row(
      "Bilinear", {{kRows}, {kRows}}, [] { return nn::Bilinear(64, 64, 8); },
      [](auto& it, const Tensors& x) { return it->forward(x[0], x[1]); }));
  rows.push_back(module_row("Flatten", kImages, [] { return nn::Flatten(); }));
  rows.push_back(module_row("Unflatten", kRows, [] { return nn::Unflatten(nn::UnflattenOptions(1, {8, 8})); }));
}

void add_containers(std::vector<NnRow>& rows) {
  rows.push_back(module_row("Sequential", kRows, [] { return nn::Sequential(nn::Linear(64, 64), nn::ReLU()); }));
  const auto list = [] {
    nn::ModuleList all(nn::Linear(64, 64), nn::Tanh());
    return all;
  };
  rows.push_back(module_row("ModuleList", {{kRows}}, list, [](auto& it, const Tensors& x) {
    return it->template at<nn::TanhImpl>(1).forward(it->template at<nn::LinearImpl>(0).forward(x[0]));
  }));
  const auto dict = [] {
    nn::ModuleDict all;
    all->update({{"layer", nn::Linear(64, 64).ptr()}});
    return all;
  };
  rows.push_back(module_row("ModuleDict", {{kRows}}, dict, [](auto& it, const Tensors& x) {
    return (*it)["layer"]->template as<nn::Linear>()->forward(x[0]);
  }));
  const auto parameters = [] {
    nn::ParameterList all;
    all->append(torch::randn({64}));
    return all;
  };
  rows.push_back(
      module_row("ParameterList", {{kRows}}, parameters, [](auto& it, const Tensors& x) { return x[0] * it[0]; }));
  const auto named = [] {
    nn::ParameterDict all;
    all->insert("scale", torch::randn({64}));
    return all;
  };
  rows.push_back(
      module_row("ParameterDict", {{kRows}}, named, [](auto& it, const Tensors& x) { return x[0] * it["scale"]; }));
}

void add_convolutions(std::vector<NnRow>& rows) {
  rows.push_back(module_row("Conv1d", kSignal, [] { return nn::Conv1d(nn::Conv1dOptions(16, 16, 5)); }));
  rows.push_back(module_row("Conv1d circular", kSignal, [] {
    return nn::Conv1d(nn::Conv1dOptions(16, 16, 5).padding(2).padding_mode(torch::kCircular));
  }));
  rows.push_back(module_row("Conv2d", kImages, [] { return nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1)); }));
  rows.push_back(module_row("Conv2d strided", kImages,
                            [] { return nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2).bias(false)); }));
  rows.back().within = 0.1;  // oneDNN and torch take a little more
  rows.push_back(
      module_row("Conv2d groups", kImages, [] { return nn::Conv2d(nn::Conv2dOptions(8, 16, 3).groups(4)); }));
  rows.push_back(
      module_row("Conv2d depthwise", kImages, [] { return nn::Conv2d(nn::Conv2dOptions(8, 8, 3).groups(8)); }));
  rows.push_back(
      module_row("Conv2d dilated", kImages, [] { return nn::Conv2d(nn::Conv2dOptions(8, 16, 3).dilation(2)); }));
  rows.push_back(module_row("Conv2d 1x1", kImages, [] { return nn::Conv2d(nn::Conv2dOptions(8, 16, 1)); }));
  rows.push_back(module_row("Conv2d same reflect", kImages, [] {
    return nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(torch::kSame).padding_mode(torch::kReflect));
  }));
  rows.push_back(module_row(
      "Conv2d channels-last", {{kImages}}, [] { return nn::Conv2d(nn::Conv2dOptions(8, 16, 3)); },
      [](auto& it, const Tensors& x) { return it->forward(x[0].contiguous(at::MemoryFormat::ChannelsLast)); }));
  rows.push_back(module_row("Conv3d", kVolume, [] { return nn::Conv3d(nn::Conv3dOptions(8, 8, 3)); }));
  rows.push_back(module_row("ConvTranspose1d", kSignal,
                            [] { return nn::ConvTranspose1d(nn::ConvTranspose1dOptions(16, 16, 4)); }));
  rows.push_back(module_row("ConvTranspose2d", kImages, [] {
    return nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 8, 4).stride(2).padding(1).bias(false));
  }));
  rows.push_back(module_row("ConvTranspose2d output padding", kImages, [] {
    return nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 8, 3).stride(2).output_padding(1).groups(2));
  }));
  rows.push_back(
      module_row("ConvTranspose3d", kVolume, [] { return nn::ConvTranspose3d(nn::ConvTranspose3dOptions(8, 8, 2)); }));
  rows.push_back(module_row("Fold", {8, 36, 64}, [] { return nn::Fold(nn::FoldOptions({10, 10}, {3, 3})); }));
  rows.push_back(module_row("Unfold", kImages, [] { return nn::Unfold(nn::UnfoldOptions(3).padding(1).stride(2)); }));
}

void add_norms(std::vector<NnRow>& rows) {
  rows.push_back(module_row("BatchNorm1d", kRows, [] { return nn::BatchNorm1d(64); }));
  rows.push_back(module_row("BatchNorm1d signal", kSignal, [] { return nn::BatchNorm1d(16); }));
  rows.push_back(module_row("BatchNorm2d", kImages, [] { return nn::BatchNorm2d(8); }));
  rows.push_back(module_row("BatchNorm2d plain", kImages, [] {
    return nn::BatchNorm2d(nn::BatchNorm2dOptions(8).affine(false).track_running_stats(false));
  }));
  rows.push_back(module_row("BatchNorm3d", kVolume, [] { return nn::BatchNorm3d(8); }));
  rows.push_back(module_row("InstanceNorm1d", kSignal, [] { return nn::InstanceNorm1d(16); }));
  rows.push_back(module_row("InstanceNorm2d", kImages, [] {
    return nn::InstanceNorm2d(nn::InstanceNorm2dOptions(8).affine(true).track_running_stats(true));
  }));
  rows.push_back(module_row("InstanceNorm3d", kVolume, [] { return nn::InstanceNorm3d(8); }));
  rows.push_back(module_row("LayerNorm", kRows, [] { return nn::LayerNorm(nn::LayerNormOptions({64})); }));
  rows.push_back(module_row("LayerNorm plain", kSignal, [] {
    return nn::LayerNorm(nn::LayerNormOptions({16, 128}).elementwise_affine(false));
  }));
  rows.push_back(module_row("GroupNorm", kImages, [] { return nn::GroupNorm(2, 8); }));
  rows.push_back(
      module_row("GroupNorm plain", kSignal, [] { return nn::GroupNorm(nn::GroupNormOptions(4, 16).affine(false)); }));
  rows.push_back(module_row("LocalResponseNorm", kImages, [] { return nn::LocalResponseNorm(2); }));
  rows.push_back(module_row("CrossMapLRN2d", kImages, [] { return nn::CrossMapLRN2d(3); }));
  rows.push_back(module_row("Dropout", kRows, [] { return nn::Dropout(0.3); }));
  rows.push_back(
      module_row("Dropout inplace", kRows, [] { return nn::Dropout(nn::DropoutOptions(0.3).inplace(true)); }));
  rows.push_back(module_row("Dropout2d", kImages, [] { return nn::Dropout2d(); }));
  rows.push_back(module_row("Dropout3d", kVolume, [] { return nn::Dropout3d(); }));
  rows.push_back(module_row("AlphaDropout", kRows, [] { return nn::AlphaDropout(); }));
  rows.push_back(module_row("FeatureAlphaDropout", kImages, [] { return nn::FeatureAlphaDropout(); }));
}

void add_pools(std::vector<NnRow>& rows) {
  rows.push_back(module_row("AvgPool1d", kSignal, [] { return nn::AvgPool1d(3); }));
  rows.push_back(module_row("AvgPool2d", kImages, [] { return nn::AvgPool2d(2); }));
  rows.push_back(module_row("AvgPool2d ceil", kImages, [] {
    return nn::AvgPool2d(nn::AvgPool2dOptions(5).stride(3).padding(1).ceil_mode(true).count_include_pad(false));
  }));
  rows.push_back(module_row("AvgPool3d", kVolume, [] { return nn::AvgPool3d(2); }));
  rows.push_back(module_row("MaxPool1d", kSignal, [] { return nn::MaxPool1d(2); }));
  rows.push_back(module_row("MaxPool2d", kImages, [] { return nn::MaxPool2d(2); }));
  rows.push_back(module_row("MaxPool2d ceil dilated", kImages, [] {
    return nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1).dilation(2).ceil_mode(true));
  }));
  rows.push_back(module_row(
      "MaxPool2d channels-last", {{kImages}}, [] { return nn::MaxPool2d(2); },
      [](auto& it, const Tensors& x) { return it->forward(x[0].contiguous(at::MemoryFormat::ChannelsLast)); }));
  rows.push_back(module_row("MaxPool3d", kVolume, [] { return nn::MaxPool3d(2); }));
  rows.push_back(module_row("MaxPool3d ceil", kVolume, [] {
    return nn::MaxPool3d(nn::MaxPool3dOptions(3).stride(2).padding(1).ceil_mode(true));
  }));
  rows.push_back(module_row("AdaptiveAvgPool1d", kSignal, [] { return nn::AdaptiveAvgPool1d(31); }));
  rows.push_back(module_row("AdaptiveAvgPool2d", kImages, [] {
    return nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({7, 9}));
  }));
  rows.push_back(module_row("AdaptiveAvgPool2d one", kImages, [] { return nn::AdaptiveAvgPool2d(1); }));
  rows.push_back(module_row(
      "AdaptiveAvgPool2d channels-last", {{kImages}}, [] { return nn::AdaptiveAvgPool2d(12); },
      [](auto& it, const Tensors& x) { return it->forward(x[0].contiguous(at::MemoryFormat::ChannelsLast)); }));
  rows.push_back(module_row("AdaptiveAvgPool3d", kVolume, [] { return nn::AdaptiveAvgPool3d(5); }));
  rows.push_back(module_row("AdaptiveMaxPool1d", kSignal, [] { return nn::AdaptiveMaxPool1d(31); }));
  rows.push_back(module_row("AdaptiveMaxPool2d", kImages, [] { return nn::AdaptiveMaxPool2d(7); }));
  rows.push_back(module_row("AdaptiveMaxPool3d", kVolume, [] { return nn::AdaptiveMaxPool3d(5); }));
  rows.push_back(module_row("LPPool1d", kSignal, [] { return nn::LPPool1d(2, 3); }));
  rows.push_back(module_row("LPPool2d", kImages, [] { return nn::LPPool2d(2, 3); }));
  rows.push_back(module_row("LPPool3d", kVolume, [] { return nn::LPPool3d(2, 3); }));
  rows.push_back(module_row("FractionalMaxPool2d", kImages,
                            [] { return nn::FractionalMaxPool2d(nn::FractionalMaxPool2dOptions(2).output_size(9)); }));
  rows.push_back(module_row("FractionalMaxPool3d", kVolume,
                            [] { return nn::FractionalMaxPool3d(nn::FractionalMaxPool3dOptions(2).output_size(5)); }));
  const auto unpooled = [](auto& it, const Tensors& x) {
    const auto kernel = Sizes(static_cast<size_t>(x[0].dim()) - 2, 2);
    auto [pooled, indices] = x[0].dim() == 3   ? at::max_pool1d_with_indices(x[0], kernel)
                             : x[0].dim() == 4 ? at::max_pool2d_with_indices(x[0], kernel)
                                               : at::max_pool3d_with_indices(x[0], kernel);
    return it->forward(pooled, indices);
  };
  rows.push_back(module_row(
      "MaxUnpool1d", {{kSignal}}, [] { return nn::MaxUnpool1d(2); }, unpooled));
  rows.push_back(module_row(
      "MaxUnpool2d", {{kImages}}, [] { return nn::MaxUnpool2d(2); }, unpooled));
  rows.push_back(module_row(
      "MaxUnpool3d", {{kVolume}}, [] { return nn::MaxUnpool3d(2); }, unpooled));
}

void add_padding(std::vector<NnRow>& rows) {
  rows.push_back(module_row("ReflectionPad1d", kSignal, [] { return nn::ReflectionPad1d(3); }));
  rows.push_back(module_row("ReflectionPad2d", kImages, [] {
    return nn::ReflectionPad2d(nn::ReflectionPad2dOptions({1, 2, 3, 4}));
  }));
  rows.push_back(module_row("ReflectionPad3d", kVolume, [] { return nn::ReflectionPad3d(2); }));
  rows.push_back(module_row("ReplicationPad1d", kSignal, [] { return nn::ReplicationPad1d(3); }));
  rows.push_back(module_row("ReplicationPad2d", kImages, [] { return nn::ReplicationPad2d(2); }));
  rows.push_back(module_row(
      "ReplicationPad2d channels-last", {{kImages}}, [] { return nn::ReplicationPad2d(2); },
      [](auto& it, const Tensors& x) { return it->forward(x[0].contiguous(at::MemoryFormat::ChannelsLast)); }));
  rows.push_back(module_row("ReplicationPad3d", kVolume, [] { return nn::ReplicationPad3d(2); }));
  rows.push_back(module_row("ConstantPad1d", kSignal, [] { return nn::ConstantPad1d(3, 1.5); }));
  rows.push_back(module_row("ConstantPad2d", kImages, [] { return nn::ConstantPad2d(2, 1.5); }));
  rows.push_back(module_row("ConstantPad3d", kVolume, [] { return nn::ConstantPad3d(2, 1.5); }));
  rows.push_back(module_row("ZeroPad1d", kSignal, [] { return nn::ZeroPad1d(3); }));
  rows.push_back(module_row("ZeroPad2d", kImages, [] { return nn::ZeroPad2d(2); }));
  rows.push_back(module_row("ZeroPad3d", kVolume, [] { return nn::ZeroPad3d(2); }));
  rows.push_back(module_row("PixelShuffle", kImages, [] { return nn::PixelShuffle(2); }));
  rows.push_back(module_row("PixelUnshuffle", kImages, [] { return nn::PixelUnshuffle(2); }));
  for (const bool aligned : {false, true}) {
    const std::string end = aligned ? " aligned" : "";
    const auto upsample = [&](const char* mode, const Sizes& sizes, auto how) {
      rows.push_back(module_row(std::string("Upsample ") + mode + end, sizes, [=] {
        auto options = nn::UpsampleOptions().scale_factor(std::vector<double>(sizes.size() - 2, 2.0)).mode(how);
        if (aligned) options.align_corners(true);
        return nn::Upsample(options);
      }));
    };
    upsample("linear", kSignal, torch::kLinear);
    upsample("bilinear", kImages, torch::kBilinear);
    upsample("bicubic", kImages, torch::kBicubic);
    upsample("trilinear", kVolume, torch::kTrilinear);
    if (!aligned) upsample("nearest", kImages, torch::kNearest);
  }
}

void add_distances(std::vector<NnRow>& rows) {
  rows.push_back(loss_row("CosineSimilarity", {kRows}, {kRows}, [] { return nn::CosineSimilarity(); }));
  rows.push_back(loss_row("PairwiseDistance", {kRows}, {kRows}, [] { return nn::PairwiseDistance(); }));
  rows.push_back(module_row(
      "Embedding", {{{256}, 100}}, [] { return nn::Embedding(100, 64); },
      [](auto& it, const Tensors& x) { return it->forward(x[0]); }));
  rows.push_back(module_row(
      "Embedding padding", {{{64, 8}, 100}},
      [] { return nn::Embedding(nn::EmbeddingOptions(100, 64).padding_idx(3).scale_grad_by_freq(true)); },
      [](auto& it, const Tensors& x) { return it->forward(x[0]); }));
  rows.push_back(module_row(
      "Embedding max_norm", {{{256}, 100}}, [] { return nn::Embedding(nn::EmbeddingOptions(100, 64).max_norm(1.0)); },
      [](auto& it, const Tensors& x) { return it->forward(x[0]); }));
  rows.back().for_one_rank = true;
  const auto bags = [](auto& it, const Tensors& x) { return it->forward(x[0]); };
  rows.push_back(module_row(
      "EmbeddingBag", {{{256, 8}, 100}}, [] { return nn::EmbeddingBag(100, 64); }, bags));
  rows.push_back(module_row(
      "EmbeddingBag sum", {{{256, 8}, 100}},
      [] { return nn::EmbeddingBag(nn::EmbeddingBagOptions(100, 64).mode(torch::kSum)); }, bags));
  rows.push_back(module_row(
      "EmbeddingBag max", {{{256, 8}, 100}},
      [] { return nn::EmbeddingBag(nn::EmbeddingBagOptions(100, 64).mode(torch::kMax)); }, bags));
  rows.back().within = 0.1;  // oneDNN and torch take a little more
}

void add_losses(std::vector<NnRow>& rows) {
  const NnInput x{kRows}, y{kRows}, classes{{256}, 64};
  rows.push_back(loss_row("L1Loss", x, y, [] { return nn::L1Loss(); }));
  rows.push_back(loss_row("L1Loss none", x, y, [] { return nn::L1Loss(nn::L1LossOptions(torch::kNone)); }));
  rows.push_back(loss_row("MSELoss", x, y, [] { return nn::MSELoss(); }));
  rows.push_back(loss_row("MSELoss none", x, y, [] { return nn::MSELoss(nn::MSELossOptions(torch::kNone)); }));
  rows.push_back(loss_row("KLDivLoss", x, y, [] { return nn::KLDivLoss(); }));
  rows.push_back(loss_row("KLDivLoss log batchmean", x, y,
                          [] { return nn::KLDivLoss(nn::KLDivLossOptions(torch::kBatchMean).log_target(true)); }));
  const auto probabilities = [](auto& it, const Tensors& in) {
    return it->forward(torch::sigmoid(in[0]), torch::sigmoid(in[1]));
  };
  rows.push_back(module_row(
      "BCELoss", {x, y}, [] { return nn::BCELoss(); }, probabilities));
  rows.push_back(module_row(
      "BCELoss none", {x, y}, [] { return nn::BCELoss(nn::BCELossOptions().reduction(torch::kNone)); }, probabilities));
  rows.push_back(module_row(
      "BCELoss sum weight", {x, y},
      [] { return nn::BCELoss(nn::BCELossOptions().reduction(torch::kSum).weight(torch::ones({64}))); },
      probabilities));
  rows.push_back(loss_row("BCEWithLogitsLoss", x, y, [] { return nn::BCEWithLogitsLoss(); }));
  rows.push_back(loss_row("BCEWithLogitsLoss pos_weight", x, y, [] {
    return nn::BCEWithLogitsLoss(nn::BCEWithLogitsLossOptions().pos_weight(torch::ones({64})));
  }));
  rows.push_back(loss_row("HingeEmbeddingLoss", x, y, [] { return nn::HingeEmbeddingLoss(); }));
  rows.push_back(loss_row("MultiMarginLoss", x, classes, [] { return nn::MultiMarginLoss(); }));
  rows.push_back(loss_row("MultiMarginLoss none weight", x, classes, [] {
    return nn::MultiMarginLoss(nn::MultiMarginLossOptions().p(2).weight(torch::ones({64})).reduction(torch::kNone));
  }));
  rows.push_back(loss_row("MultiLabelMarginLoss", x, {kRows, 64}, [] { return nn::MultiLabelMarginLoss(); }));
  rows.push_back(loss_row("MultiLabelSoftMarginLoss", x, y, [] { return nn::MultiLabelSoftMarginLoss(); }));
  rows.push_back(loss_row("SoftMarginLoss", x, y, [] { return nn::SoftMarginLoss(); }));
  rows.push_back(loss_row("SmoothL1Loss", x, y, [] { return nn::SmoothL1Loss(); }));
  rows.push_back(
      loss_row("SmoothL1Loss none", x, y, [] { return nn::SmoothL1Loss(nn::SmoothL1LossOptions(torch::kNone)); }));
  rows.push_back(loss_row("HuberLoss", x, y, [] { return nn::HuberLoss(); }));
  rows.push_back(loss_row("HuberLoss none", x, y, [] { return nn::HuberLoss(nn::HuberLossOptions(torch::kNone)); }));
  rows.push_back(loss_row("PoissonNLLLoss", x, y, [] { return nn::PoissonNLLLoss(); }));
  rows.push_back(
      loss_row("PoissonNLLLoss full", x, y, [] { return nn::PoissonNLLLoss(nn::PoissonNLLLossOptions().full(true)); }));
  rows.push_back(loss_row("NLLLoss", x, classes, [] { return nn::NLLLoss(); }));
  rows.push_back(loss_row("NLLLoss images", {kImages}, {{4, 24, 24}, 8}, [] { return nn::NLLLoss(); }));
  rows.push_back(loss_row("CrossEntropyLoss", x, classes, [] { return nn::CrossEntropyLoss(); }));
  rows.push_back(
      loss_row("CrossEntropyLoss images", {kImages}, {{4, 24, 24}, 8}, [] { return nn::CrossEntropyLoss(); }));
  rows.push_back(loss_row("CrossEntropyLoss images weight ignore", {kImages}, {{4, 24, 24}, 8}, [] {
    return nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().weight(torch::ones({8})).ignore_index(3));
  }));
  rows.push_back(loss_row("CrossEntropyLoss smoothed", x, classes,
                          [] { return nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().label_smoothing(0.1)); }));
  rows.push_back(loss_row("CrossEntropyLoss images smoothed none", {kImages}, {{4, 24, 24}, 8}, [] {
    return nn::CrossEntropyLoss(nn::CrossEntropyLossOptions().label_smoothing(0.1).reduction(torch::kNone));
  }));
  rows.push_back(module_row(
      "CrossEntropyLoss probabilities", {x, y}, [] { return nn::CrossEntropyLoss(); },
      [](auto& it, const Tensors& in) { return it->forward(in[0], in[1].softmax(1)); }));
  const auto signs = [](auto& it, const Tensors& in) { return it->forward(in[0], in[1], in[2]); };
  rows.push_back(module_row(
      "CosineEmbeddingLoss", {x, y, {{256}}}, [] { return nn::CosineEmbeddingLoss(); }, signs));
  rows.push_back(module_row(
      "MarginRankingLoss", {x, y, y}, [] { return nn::MarginRankingLoss(); }, signs));
  rows.push_back(module_row(
      "TripletMarginLoss", {x, y, y}, [] { return nn::TripletMarginLoss(); }, signs));
  rows.push_back(module_row(
      "TripletMarginLoss swap", {x, y, y},
      [] { return nn::TripletMarginLoss(nn::TripletMarginLossOptions().swap(true).p(1)); }, signs));
  rows.push_back(module_row(
      "TripletMarginWithDistanceLoss", {x, y, y}, [] { return nn::TripletMarginWithDistanceLoss(); }, signs));
  rows.push_back(module_row(
      "CTCLoss", {{{32, 8, 32}}, {{8, 10}, 31}}, [] { return nn::CTCLoss(); },
      [](auto& it, const Tensors& in) {
        const auto lengths = [](int64_t n) { return torch::full({8}, n, torch::kLong); };
        return it->forward(in[0].log_softmax(2), in[1] + 1, lengths(32), lengths(10));
      }));
  rows.back().refused = "aten::ctc_loss";
  rows.push_back(module_row(
      "AdaptiveLogSoftmaxWithLoss", {x, {{256}, 100}},
      [] {
        return nn::AdaptiveLogSoftmaxWithLoss(nn::AdaptiveLogSoftmaxWithLossOptions(64, 100, {10, 50}));
      },
      [](auto& it, const Tensors& in) { return it->forward(in[0], in[1]).output; }));
  rows.back().refused = "aten::";
}

}  // namespace

std::vector<NnRow> module_rows() {
  std::vector<NnRow> rows;
  add_activations(rows);
  add_containers(rows);
  add_convolutions(rows);
  add_norms(rows);
  add_pools(rows);
  add_padding(rows);
  add_distances(rows);
  add_losses(rows);
  return rows;
}

}  // namespace levin::testing
