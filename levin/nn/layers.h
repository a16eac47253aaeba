#pragma once

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/rnn.h>

#include "levin/nn/image_layers.h"
#include "levin/nn/unit.h"

/// torch's own layers as units: same classes, same options, same parameter names; only their forward can be
/// intercepted. Linear and those of image_layers.h are derived from torch's and have forwards of their own.
///
///     levin::nn::Linear head(32, 2);
///     levin::nn::Linear bare(levin::nn::LinearOptions(32, 2).bias(false));
namespace levin::nn {

using torch::nn::BilinearImpl;
using torch::nn::BilinearOptions;
using torch::nn::FlattenImpl;
using torch::nn::FlattenOptions;
using torch::nn::IdentityImpl;
using torch::nn::LinearOptions;
using torch::nn::UnflattenImpl;
using torch::nn::UnflattenOptions;
LEVIN_MODULE(Identity);

/// torch's, with the fused backward of levin/kernels/linear/linear.h on CUDA.
struct LinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  Tensor forward(const Tensor& input);
};
LEVIN_MODULE(Linear);
LEVIN_MODULE(Bilinear);
LEVIN_MODULE(Flatten);
LEVIN_MODULE(Unflatten);

using torch::nn::Conv1dImpl;
using torch::nn::Conv1dOptions;
using torch::nn::Conv3dImpl;
using torch::nn::Conv3dOptions;
using torch::nn::ConvTranspose1dImpl;
using torch::nn::ConvTranspose1dOptions;
using torch::nn::ConvTranspose2dImpl;
using torch::nn::ConvTranspose2dOptions;
LEVIN_MODULE(Conv1d);
LEVIN_MODULE(Conv3d);
LEVIN_MODULE(ConvTranspose1d);
LEVIN_MODULE(ConvTranspose2d);

using torch::nn::EmbeddingImpl;
using torch::nn::EmbeddingOptions;
LEVIN_MODULE(Embedding);

using torch::nn::BatchNorm1dImpl;
using torch::nn::BatchNorm3dImpl;
using torch::nn::GroupNormImpl;
using torch::nn::GroupNormOptions;
using torch::nn::LayerNormImpl;
using torch::nn::LayerNormOptions;
LEVIN_MODULE(BatchNorm1d);
LEVIN_MODULE(BatchNorm3d);
LEVIN_MODULE(GroupNorm);
LEVIN_MODULE(LayerNorm);

using torch::nn::Dropout2dImpl;
using torch::nn::Dropout2dOptions;
using torch::nn::DropoutImpl;
using torch::nn::DropoutOptions;
LEVIN_MODULE(Dropout);
LEVIN_MODULE(Dropout2d);

using torch::nn::ELUImpl;
using torch::nn::ELUOptions;
using torch::nn::GELUImpl;
using torch::nn::GELUOptions;
using torch::nn::LeakyReLUImpl;
using torch::nn::LeakyReLUOptions;
using torch::nn::ReLUImpl;
using torch::nn::ReLUOptions;
using torch::nn::SigmoidImpl;
using torch::nn::SiLUImpl;
using torch::nn::SoftmaxImpl;
using torch::nn::SoftmaxOptions;
using torch::nn::TanhImpl;
LEVIN_MODULE(ELU);
LEVIN_MODULE(GELU);
LEVIN_MODULE(LeakyReLU);
LEVIN_MODULE(ReLU);
LEVIN_MODULE(Sigmoid);
LEVIN_MODULE(SiLU);
LEVIN_MODULE(Softmax);
LEVIN_MODULE(Tanh);

using torch::nn::MultiheadAttentionImpl;
using torch::nn::MultiheadAttentionOptions;
LEVIN_MODULE(MultiheadAttention);

using torch::nn::AdaptiveAvgPool1dImpl;
using torch::nn::AdaptiveAvgPool1dOptions;
using torch::nn::AdaptiveAvgPool2dImpl;
using torch::nn::AdaptiveAvgPool2dOptions;
using torch::nn::AvgPool2dImpl;
using torch::nn::AvgPool2dOptions;
using torch::nn::MaxPool1dImpl;
using torch::nn::MaxPool1dOptions;
LEVIN_MODULE(AdaptiveAvgPool1d);
LEVIN_MODULE(AdaptiveAvgPool2d);
LEVIN_MODULE(AvgPool2d);
LEVIN_MODULE(MaxPool1d);

using torch::nn::GRUImpl;
using torch::nn::GRUOptions;
using torch::nn::LSTMImpl;
using torch::nn::LSTMOptions;
LEVIN_MODULE(GRU);
LEVIN_MODULE(LSTM);

}  // namespace levin::nn
