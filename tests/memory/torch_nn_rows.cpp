#include "tests/memory/torch_nn_rows.h"

namespace levin::testing {

std::vector<NnRow> nn_rows() {
  auto all = module_rows();
  for (auto* more : {&recurrent_rows, &functional_rows})
    for (auto& row : more()) all.push_back(std::move(row));
  return all;
}

Tensors make_inputs(const NnRow& row, c10::Device device, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  Tensors made;
  for (const auto& input : row.inputs) {
    const auto options = torch::dtype(input.below > 0 ? at::kLong : at::kFloat).device(device);
    if (device.is_meta())
      made.push_back(at::empty(input.sizes, options));
    else
      made.push_back(input.below > 0 ? at::randint(0, input.below, input.sizes, generator, options)
                                     : at::randn(input.sizes, generator, options));
  }
  return made;
}

NnNetImpl::NnNetImpl(const NnRow& row) {
  if (row.inputs[0].below == 0) {
    const auto width = row.inputs[0].sizes.back();
    stem = register_module("stem", torch::nn::Linear(width, width));
  }
  run = row.make(*this);
  if (parameters().empty()) scale = register_parameter("scale", torch::ones({1}));
}

Tensor NnNetImpl::forward(const Tensors& inputs) {
  auto x = inputs;
  if (stem) x[0] = stem(x[0]);
  return scale.defined() ? run(x) * scale : run(x);
}

Tensor loss_of(const Tensor& output) {
  return output.to(at::kFloat).pow(2).mean();
}

}  // namespace levin::testing
