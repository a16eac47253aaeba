#include "levin/kernels/later_gradients.h"

#include <cstdlib>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "levin/core/error.h"

namespace levin::kernels {
namespace {

/// Torch propagates one object of a kind to the threads of a backward. It uses this kind nowhere itself.
constexpr auto kKind = c10::DebugInfoKind::PRODUCER_INFO;

/// Nobody looks at the gradient before backward is over.
bool may_wait(const Tensor& parameter) {
  namespace impl = torch::autograd::impl;
  if (!parameter.is_leaf() || !parameter.requires_grad() || parameter.grad().defined()) return false;
  if (!impl::hooks(parameter).empty() || impl::post_acc_grad_hooks(parameter)) return false;
  const auto end = impl::try_get_grad_accumulator(parameter);
  return !end || (end->pre_hooks().empty() && end->post_hooks().empty() && end->tensor_pre_hooks().empty());
}

}  // namespace

namespace detail {

LaterQueue* later_queue(const Tensor& weight, const Tensor& bias) {
  auto* info = c10::ThreadLocalDebugInfo::get(kKind);
  auto* queue = info ? dynamic_cast<LaterQueue*>(info) : nullptr;
  if (!queue || !queue->takes(weight) || !may_wait(weight)) return nullptr;
  return !bias.defined() || may_wait(bias) ? queue : nullptr;
}

int64_t later_products(std::string_view word) {
  LEVIN_CHECK(word.size() == 1 && word[0] >= '0' && word[0] <= '8',
              "[compile] LEVIN_SECOND_STREAM must be 0 to 8, got \"", word, "\"");
  return word[0] - '0';
}

int64_t later_products_of_environment() {
  static const auto products = [] {
    const char* word = std::getenv("LEVIN_SECOND_STREAM");
    return later_products(word ? word : "0");
  }();
  return products;
}

}  // namespace detail

LaterGradients::LaterGradients(std::shared_ptr<detail::LaterQueue> queue) : queue_(std::move(queue)) {
  if (queue_) guard_.emplace(kKind, queue_);
}

LaterGradients::~LaterGradients() {
  if (!queue_) return;
  guard_.reset();
  try {
    queue_->wait();
  } catch (const std::exception&) {  // the graph that is captured has failed already
  }
}

void LaterGradients::finish() {
  if (!queue_) return;
  guard_.reset();
  queue_->wait();
  const at::NoGradGuard no_grad;
  for (auto& [parameter, gradient] : queue_->gradients) {
    auto& grad = parameter.mutable_grad();
    if (grad.defined())  // of another use of the weight
      grad.add_(gradient);
    else
      grad = std::move(gradient);
  }
  queue_.reset();
}

}  // namespace levin::kernels
