#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/core/each_tensor.h"
#include "levin/core/error.h"
#include "levin/fabric/microbatches.h"

namespace levin {

using at::Tensor;

/// What the trainer is doing.
enum class Stage { kIdle, kTrain, kSanity, kValidate, kTest, kPredict };
/// "fit", "validate", "test", "predict"; what setup() and teardown() are told. A sanity check is part of "fit".
std::string_view stage_name(Stage stage);

/// Where a step is.
struct StepInfo {
  /// Of this epoch, of this loader.
  int64_t batch_idx = 0;
  int64_t dataloader_idx = 0;
};

/// What a step gives back: a loss, `{}` to skip the batch, or a loss and named tensors for the callbacks:
///
///     return {loss, {{"logits", logits}}};
struct StepOutput {
  Tensor loss;
  std::vector<std::pair<std::string, Tensor>> extra;

  StepOutput() = default;
  StepOutput(Tensor l) : loss(std::move(l)) {}  // NOLINT: implicit on purpose, `return loss;`
  StepOutput(Tensor l, std::vector<std::pair<std::string, Tensor>> e) : loss(std::move(l)), extra(std::move(e)) {}

  /// A tensor of `extra`; an Error that lists the names when there is none.
  const Tensor& operator[](std::string_view name) const;

  template <class F>
  void each_tensor(F&& f) {
    f(loss);
    for (auto& [name, tensor] : extra) f(tensor);
  }
};

/// A metric by its name: a number on the host, or a tensor of one element on a device, read only when somebody must
/// know.
using MetricMap = std::map<std::string, std::variant<double, Tensor>>;

/// How a value that is logged is shown and reduced.
struct LogOptions {
  /// Show it in the progress bar.
  bool prog_bar = false;
  /// Give it to the loggers.
  bool logger = true;
  /// The value of each step. By default as fits the hook: training steps yes, evaluation no.
  std::optional<bool> on_step = {};
  /// The value of the epoch. By default as fits the hook: evaluation yes, training steps no.
  std::optional<bool> on_epoch = {};
  /// How values become the epoch's: "mean" (weighted by batch size), "sum", "min", "max".
  std::string_view reduce_fx = "mean";
  /// Reduce over the ranks too. Without it each rank has its own.
  bool sync_dist = false;
  /// With several evaluation loaders, append "/dataloader_idx_N".
  bool add_dataloader_idx = true;
  /// The weight in the epoch's mean. Defaults to the first size of the first tensor of the batch.
  std::optional<int64_t> batch_size = {};
  /// Logged on rank 0 alone. Such a value cannot be monitored.
  bool rank_zero_only = false;
};

/// A reference to a batch of any type, as loaders give it and callbacks get it; it stays the loader's.
class AnyBatch {
 public:
  AnyBatch() = default;
  template <class B>
  explicit AnyBatch(B& batch)
      : batch_(&batch),
        type_(&typeid(B)),
        size_([](void* p) { return detail_size(*static_cast<B*>(p)); }),
        each_([](void* p, void (*f)(void*, const Tensor&), void* to) {
          levin::each_tensor(*static_cast<B*>(p), [&](const Tensor& t) { f(to, t); });
        }),
        split_([](void* p, const std::vector<int64_t>& rows) { return split_typed(*static_cast<B*>(p), rows); }) {}

  /// The batch itself; an Error when it is of another type.
  template <class B>
  B& get() const {
    LEVIN_CHECK(type_ && *type_ == typeid(B), "[batch] this run's batches are of another type");
    return *static_cast<B*>(batch_);
  }
  /// Samples: the first size of the first tensor that has one, else 1.
  int64_t size() const { return batch_ ? size_(batch_) : 1; }
  bool empty() const { return batch_ == nullptr; }
  /// Parts of these numbers of rows, which own what they refer to. An Error when the batch cannot be copied.
  std::vector<AnyBatch> split(const std::vector<int64_t>& rows) const { return split_(batch_, rows); }
  /// Every tensor of it.
  template <class F>
  void each_tensor(F&& f) const {
    if (batch_)
      each_(
          batch_, [](void* to, const Tensor& t) { (*static_cast<std::remove_reference_t<F>*>(to))(t); }, &f);
  }

 private:
  template <class B>
  static int64_t detail_size(B& batch) {
    int64_t size = 0;
    levin::each_tensor(batch, [&](const Tensor& t) {
      if (size == 0 && t.defined() && t.dim() > 0) size = t.size(0);
    });
    return size > 0 ? size : 1;
  }

  template <class B>
  static std::vector<AnyBatch> split_typed(const B& batch, const std::vector<int64_t>& rows) {
    std::vector<AnyBatch> parts;
    if constexpr (std::is_copy_constructible_v<B>) {
      for (auto& part : detail::split_rows(batch, rows)) {
        const auto own = std::make_shared<B>(std::move(part));
        parts.emplace_back(*own).owner_ = own;
      }
    } else {
      LEVIN_CHECK(sizeof(B) == 0, "[batch] batches of this type cannot be copied, and so not be split");
    }
    return parts;
  }

  void* batch_ = nullptr;
  std::shared_ptr<void> owner_;
  const std::type_info* type_ = nullptr;
  int64_t (*size_)(void*) = nullptr;
  void (*each_)(void*, void (*)(void*, const Tensor&), void*) = nullptr;
  std::vector<AnyBatch> (*split_)(void*, const std::vector<int64_t>&) = nullptr;
};

}  // namespace levin
