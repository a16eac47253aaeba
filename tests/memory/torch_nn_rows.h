#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

namespace levin::testing {

using at::Tensor;
using Tensors = std::vector<Tensor>;

/// An input of a row: numbers of a normal distribution, or whole numbers below `below`.
struct NnInput {
  std::vector<int64_t> sizes;
  int64_t below = 0;
};

/// A module or functional of torch::nn within a step: what it is called with.
struct NnRow {
  /// The class or function, then the options: "Conv2d groups".
  std::string name;
  std::vector<NnInput> inputs;
  /// Makes the modules as children of `owner`, and the forward.
  std::function<std::function<Tensor(const Tensors&)>(torch::nn::Module& owner)> make;
  /// The line by which an estimate is refused; empty: it is none.
  std::string refused = {};
  /// Its forward changes weights by the samples of a rank, so that ranks differ: trained on one only.
  bool for_one_rank = false;
  /// Of the measured memory: how far the predicted one may be from it.
  double within = 0.05;

  std::string subject() const { return name.substr(0, name.find(' ')); }
};

/// Every module of torch/nn/modules.h, and every functional of torch/nn/functional.h, with their options.
std::vector<NnRow> module_rows();
std::vector<NnRow> recurrent_rows();
std::vector<NnRow> functional_rows();
std::vector<NnRow> nn_rows();

/// The inputs of a row; the same for the same seed. On meta they have no values.
Tensors make_inputs(const NnRow& row, c10::Device device, uint64_t seed);

/// A layer on the first input, where that has floating-point numbers; then the row.
struct NnNetImpl : torch::nn::Module {
  explicit NnNetImpl(const NnRow& row);
  Tensor forward(const Tensors& inputs);

  torch::nn::Linear stem{nullptr};
  /// Where nothing else is trained.
  Tensor scale;
  std::function<Tensor(const Tensors&)> run;
};
TORCH_MODULE(NnNet);

/// A loss of whatever a row returns.
Tensor loss_of(const Tensor& output);

// ---- for the tables

template <class Factory, class Call>
NnRow module_row(std::string name, std::vector<NnInput> inputs, Factory factory, Call call) {
  return {std::move(name), std::move(inputs), [=](torch::nn::Module& owner) -> std::function<Tensor(const Tensors&)> {
            auto it = factory();
            owner.register_module("it", it.ptr());
            return [it, call](const Tensors& x) mutable -> Tensor { return call(it, x); };
          }};
}
template <class Factory>
NnRow module_row(std::string name, std::vector<int64_t> sizes, Factory factory) {
  return module_row(std::move(name), {{std::move(sizes)}}, factory,
                    [](auto& it, const Tensors& x) -> Tensor { return it->forward(x[0]); });
}
/// A loss, of an input and a target.
template <class Factory>
NnRow loss_row(std::string name, NnInput x, NnInput target, Factory factory) {
  return module_row(std::move(name), {std::move(x), std::move(target)}, factory,
                    [](auto& it, const Tensors& in) -> Tensor { return it->forward(in[0], in[1]); });
}
template <class Call>
NnRow functional_row(std::string name, std::vector<NnInput> inputs, Call call) {
  return {std::move(name), std::move(inputs), [call](torch::nn::Module&) -> std::function<Tensor(const Tensors&)> {
            return [call](const Tensors& x) -> Tensor { return call(x); };
          }};
}

}  // namespace levin::testing
