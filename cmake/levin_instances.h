#pragma once
// Virtual members of torch's class templates, named so that clang instantiates them with the precompiled header that
// includes this. It leaves those that only a vtable names to every source: an empty one takes 2.7 s of CPU time, and
// 0.4 s with these. Nothing here is called or emitted. `clang++ -ftime-trace` of an empty source shows what is missing.
// g++ instantiates in every source anyway.
#include <iostream>

#include <torch/torch.h>

#ifdef __clang__
namespace levin::instances {

namespace nn = torch::nn;
namespace jit = torch::jit;
namespace optim = torch::optim;
namespace datasets = torch::data::datasets;

// An explicit instantiation may name private members; one that is final is instantiated then.
template <auto>
struct Named {};

// A call with the class's name is not virtual, so it needs the definition.
#define LEVIN_INSTANTIATE(Name)                                  \
  template struct Named<&nn::Cloneable<nn::Name##Impl>::clone_>; \
  inline void clone(nn::Name##Impl& unit) {                      \
    unit.nn::Cloneable<nn::Name##Impl>::clone();                 \
  }
LEVIN_INSTANTIATE(AdaptiveLogSoftmaxWithLoss)
LEVIN_INSTANTIATE(Bilinear)
LEVIN_INSTANTIATE(Conv1d)
LEVIN_INSTANTIATE(Conv2d)
LEVIN_INSTANTIATE(Conv3d)
LEVIN_INSTANTIATE(ConvTranspose1d)
LEVIN_INSTANTIATE(ConvTranspose2d)
LEVIN_INSTANTIATE(ConvTranspose3d)
LEVIN_INSTANTIATE(CrossMapLRN2d)
LEVIN_INSTANTIATE(Embedding)
LEVIN_INSTANTIATE(EmbeddingBag)
LEVIN_INSTANTIATE(Fold)
LEVIN_INSTANTIATE(FractionalMaxPool2d)
LEVIN_INSTANTIATE(FractionalMaxPool3d)
LEVIN_INSTANTIATE(GroupNorm)
LEVIN_INSTANTIATE(GRU)
LEVIN_INSTANTIATE(GRUCell)
LEVIN_INSTANTIATE(LayerNorm)
LEVIN_INSTANTIATE(Linear)
LEVIN_INSTANTIATE(LocalResponseNorm)
LEVIN_INSTANTIATE(LogSoftmax)
LEVIN_INSTANTIATE(LSTM)
LEVIN_INSTANTIATE(LSTMCell)
LEVIN_INSTANTIATE(ModuleDict)
LEVIN_INSTANTIATE(MultiheadAttention)
LEVIN_INSTANTIATE(ParameterDict)
LEVIN_INSTANTIATE(RNN)
LEVIN_INSTANTIATE(RNNCell)
LEVIN_INSTANTIATE(Sequential)
LEVIN_INSTANTIATE(Softmax)
LEVIN_INSTANTIATE(Softmin)
LEVIN_INSTANTIATE(Threshold)
LEVIN_INSTANTIATE(TransformerDecoder)
LEVIN_INSTANTIATE(TransformerDecoderLayer)
LEVIN_INSTANTIATE(TransformerEncoder)
LEVIN_INSTANTIATE(TransformerEncoderLayer)
LEVIN_INSTANTIATE(Unflatten)
LEVIN_INSTANTIATE(Unfold)
#undef LEVIN_INSTANTIATE

template <size_t D, class Unit>
void convolution(nn::ConvNdImpl<D, Unit>& unit) {
  unit.nn::template ConvNdImpl<D, Unit>::reset();
  unit.nn::template ConvNdImpl<D, Unit>::pretty_print(std::cout);
}

template <size_t D, class Unit>
void transposed_convolution(nn::ConvTransposeNdImpl<D, Unit>& unit) {
  convolution<D, Unit>(unit);
  unit.nn::template ConvTransposeNdImpl<D, Unit>::pretty_print(std::cout);
}

inline void convolutions(nn::Conv1dImpl& one, nn::Conv2dImpl& two, nn::Conv3dImpl& three,
                         nn::ConvTranspose1dImpl& transposed_one, nn::ConvTranspose2dImpl& transposed_two,
                         nn::ConvTranspose3dImpl& transposed_three) {
  convolution<1>(one);
  convolution<2>(two);
  convolution<3>(three);
  transposed_convolution<1>(transposed_one);
  transposed_convolution<2>(transposed_two);
  transposed_convolution<3>(transposed_three);
}

template <c10::TypeKind K, class T>
void type_of_elements(c10::SingleElementType<K, T>& type) {
  type.c10::template SingleElementType<K, T>::equals(type);
  type.c10::template SingleElementType<K, T>::containedTypes();
}

inline void types_of_elements(c10::ListType& list, c10::FutureType& future, c10::AwaitType& await,
                              c10::RRefType& reference) {
  type_of_elements<c10::TypeKind::ListType>(list);
  type_of_elements<c10::TypeKind::FutureType>(future);
  type_of_elements<c10::TypeKind::AwaitType>(await);
  type_of_elements<c10::TypeKind::RRefType>(reference);
}

template <class T, jit::AttributeKind K>
void attributes(jit::ScalarAttributeValue<T, K>& value) {
  value.jit::template ScalarAttributeValue<T, K>::clone();
}

template <class T, jit::AttributeKind K>
void attributes(jit::VectorAttributeValue<T, K>& value) {
  value.jit::template VectorAttributeValue<T, K>::clone();
}

inline void attributes(jit::FloatAttr& a, jit::ComplexAttr& b, jit::IntAttr& c, jit::StringAttr& d, jit::FloatsAttr& e,
                       jit::ComplexValsAttr& f, jit::IntsAttr& g, jit::StringsAttr& h, jit::TensorsAttr& i,
                       jit::TypesAttr& j) {
  attributes(a), attributes(b), attributes(c), attributes(d), attributes(e);
  attributes(f), attributes(g), attributes(h), attributes(i), attributes(j);
}

// What clone() of these calls, since it is private.
template <class Base, class T>
std::unique_ptr<Base> copy(const T& value) {
  return std::make_unique<T>(value);
}

template <class Base, class... T>
void copies(const T&... values) {
  (static_cast<void>(copy<Base>(values)), ...);
}

inline void copies_of_options(const optim::AdagradOptions& a, const optim::AdamOptions& b, const optim::AdamWOptions& c,
                              const optim::LBFGSOptions& d, const optim::RMSpropOptions& e,
                              const optim::SGDOptions& f) {
  copies<optim::OptimizerOptions>(a, b, c, d, e, f);
}

inline void copies_of_state(const optim::AdagradParamState& a, const optim::AdamParamState& b,
                            const optim::AdamWParamState& c, const optim::LBFGSParamState& d,
                            const optim::RMSpropParamState& e, const optim::SGDParamState& f) {
  copies<optim::OptimizerParamState>(a, b, c, d, e, f);
}

inline void data(datasets::MNIST& pictures, datasets::TensorDataset& tensors) {
  pictures.datasets::Dataset<datasets::MNIST>::get_batch({});
  tensors.datasets::Dataset<datasets::TensorDataset, torch::data::TensorExample>::get_batch({});
}

}  // namespace levin::instances
#endif
