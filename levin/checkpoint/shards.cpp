#include "levin/checkpoint/shards.h"

#include <charconv>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"

namespace levin {
namespace {

c10::weak_intrusive_ptr<c10::TensorImpl> weakly(const Tensor& tensor) {
  return c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
}

void check_place(const char* operation, const Tensor& tensor, const ShardPlace& place, int64_t rows) {
  LEVIN_CHECK(tensor.defined(), "[", operation, "] the parameter is undefined");
  LEVIN_CHECK(place.start >= 0 && rows >= 0 && rows <= place.whole_rows() && place.start <= place.whole_rows() - rows,
              "[", operation, "] rows ", place.start, " to ", place.start + rows, " are not within ",
              place.whole_rows());
}

}  // namespace

std::vector<int64_t> ShardPlace::part_sizes(int64_t rows_here) const {
  if (slice) return slice->sizes();
  if (sizes.empty()) return rows_here == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{0};
  auto part = sizes;
  part[0] = rows_here;
  return part;
}

bool detail::fits(const Tensor& part, const ShardPlace& place) {
  const auto rows = rows_of(part);
  if (place.slice) return part.sizes() == at::IntArrayRef(place.slice->sizes());
  if (place.rows >= 0 && place.rows != rows) return false;
  if (place.start < 0 || rows > place.whole_rows() || place.start > place.whole_rows() - rows) return false;
  if (place.sizes.empty()) return part.dim() <= 1 && part.numel() == rows;
  return part.sizes() == at::IntArrayRef(place.part_sizes(rows));
}

Tensor detail::read_slice(const TensorSlice& slice, const at::TensorOptions& options,
                          const std::function<void(int64_t start, Tensor& into)>& read_rows) {
  if (slice.dim == 0) {
    auto part = at::empty(slice.sizes(), options);
    for (const auto& box : slice.boxes()) {
      auto rows = part.narrow(0, box.at, box.sizes[0]);
      read_rows(box.start[0], rows);
    }
    return part;
  }
  // Files have rows: some of all columns are read, and cut.
  auto columns = slice;
  columns.rows = {0, -1};
  const auto first = slice.rows.count < 0 ? 0 : slice.rows.first;
  columns.whole[0] = slice.rows.count < 0 ? slice.whole[0] : slice.rows.count;
  auto rows = at::empty(columns.whole, options);
  if (rows.numel() > 0) read_rows(first, rows);
  return columns.of(rows);
}

void TensorShards::add(const Tensor& param, ShardPlace place) {
  // Where the full parameter is shown at the moment, the rows must have been said.
  check_place("shards.add", param, place, place.rows < 0 ? 0 : place.rows);
  params_.insert_or_assign(param.unsafeGetTensorImpl(), Known{weakly(param), std::move(place)});
}

void TensorShards::add_slots(const Tensor& param, ShardPlace place) {
  LEVIN_CHECK(place.rows >= 0, "[shards.add_slots] the place must say how many rows are here");
  check_place("shards.add_slots", param, place, place.rows);
  full_params_.insert_or_assign(param.unsafeGetTensorImpl(), Known{weakly(param), std::move(place)});
}

void TensorShards::add_optimizer(const Optimizer& optimizer) {
  LEVIN_CHECK(optimizer, "[shards.add_optimizer] the optimizer is empty");
  for (const auto& known : optimizers_)
    if (known.lock() == optimizer.impl()) return;
  optimizers_.push_back(optimizer.impl());
}

const ShardPlace* TensorShards::find(const Tensor& tensor) const {
  const auto* key = tensor.unsafeGetTensorImpl();
  if (const auto found = params_.find(key); found != params_.end()) return &found->second.place;
  if (const auto found = slots_.find(key); found != slots_.end()) return &found->second.place;
  return nullptr;
}

const ShardPlace* TensorShards::find_slots(const Tensor& param) const {
  const auto* key = param.unsafeGetTensorImpl();
  if (const auto found = params_.find(key); found != params_.end()) return &found->second.place;
  if (const auto found = full_params_.find(key); found != full_params_.end()) return &found->second.place;
  return nullptr;
}

void TensorShards::refresh() {
  slots_.clear();
  std::erase_if(optimizers_, [](const auto& optimizer) { return optimizer.expired(); });
  std::erase_if(params_, [](const auto& item) { return item.second.tensor.expired(); });
  std::erase_if(full_params_, [](const auto& item) { return item.second.tensor.expired(); });
  for (const auto& weak : optimizers_) {
    const Optimizer optimizer(weak.lock());
    const auto params = optimizer.all_params();
    const auto saved = optimizer.state_dict();
    const auto* states = saved.find("state");
    if (!states || !states->is_dict()) continue;
    for (const auto& [index, state] : states->to_dict()) {
      size_t i = params.size();
      std::from_chars(index.data(), index.data() + index.size(), i);
      const auto* place = i < params.size() ? find_slots(params[i]) : nullptr;
      if (!place || !state.is_dict()) continue;
      const auto rows = place->rows >= 0 ? place->rows : detail::rows_of(params[i]);
      for (const auto& [name, slot] : state.to_dict()) {
        if (!slot.is_tensor() || !slot.to_tensor().defined() || name == "step") continue;
        const auto& tensor = slot.to_tensor();
        if (detail::fits(tensor, *place) && detail::rows_of(tensor) == rows) {
          slots_.insert_or_assign(tensor.unsafeGetTensorImpl(), Known{weakly(tensor), *place});
          continue;
        }
        LEVIN_CHECK(tensor.dim() == 0, "[checkpoint] ", optimizer.name(), " keeps \"", name, "\" of shape ",
                    fmt::format("{}", tensor.sizes()), " for parameter ", i, ", of which this rank has ", rows,
                    " rows of ", fmt::format("{}", place->sizes), "; only slots of the parameter's shape can be saved");
      }
    }
  }
}

}  // namespace levin
