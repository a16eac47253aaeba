#include "levin/checkpoint/part_gathering.h"

#include <map>
#include <span>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr char kNext = '+';
constexpr char kEnd = '.';

Tensor bytes_view(const Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

}  // namespace

Tensor PartGathering::whole(const std::string& id) {
  const auto found = parts_.find(id);
  LEVIN_CHECK(found != parts_.end(), "[full_state] rank 0 has no shard of \"", id, "\"");
  broadcast_string(group_, kNext + id);
  Tensor whole;
  LEVIN_CHECK(gather(&found->second, &whole), "[full_state] the shards of \"", id,
              "\" on the ranks are not one tensor");
  return whole;
}

void PartGathering::end() {
  broadcast_string(group_, std::string(1, kEnd));
}

void PartGathering::serve(const std::function<void(const Part&)>& sent) {
  for (;;) {
    const auto asked = broadcast_string(group_, {});
    if (asked[0] == kEnd) return;
    const auto found = parts_.find(asked.substr(1));
    const auto* part = found == parts_.end() ? nullptr : &found->second;
    if (gather(part, nullptr) && part && sent) sent(*part);
  }
}

/// Whether the shards fit together: every rank sees the same figures, and so comes to the same end.
bool PartGathering::gather(const Part* item, Tensor* whole) {
  const at::NoGradGuard no_grad;
  // Whether a tensor is of slices is the same on every rank that knows it.
  if (item && item->place.slice) return gather_slices(*item, whole);
  const bool sends = item && item->place.writes && item->tensor.numel() > 0;
  const bool empty = item && c10::multiply_integers(item->place.sizes) == 0;
  const auto all = group_.all_gather(at::tensor(
      {sends ? item->place.start : 0, sends ? rows_of(item->tensor) : 0, item && !empty ? item->place.whole_rows() : 0,
       item ? static_cast<int64_t>(item->tensor.scalar_type()) : -1},
      at::kLong));
  struct Row {
    int64_t start, rows, whole, dtype;
  };
  static_assert(sizeof(Row) == 4 * sizeof(int64_t));
  const std::span told(reinterpret_cast<const Row*>(all.const_data_ptr<int64_t>()), static_cast<size_t>(group_.size()));
  std::map<int64_t, int64_t> pieces;
  bool fit = true;
  for (const auto& [start, rows, whole_rows, dtype] : told) {
    if (rows == 0) continue;
    fit = fit && dtype == told[0].dtype && whole_rows == told[0].whole && pieces.emplace(start, rows).second;
  }
  int64_t reached = 0;
  for (const auto& [start, rows] : pieces) {
    fit = fit && start == reached;
    reached = start + rows;
  }
  if (!fit || reached != told[0].whole) return false;
  if (!whole) {
    if (sends) send(item->tensor);
    return true;
  }
  *whole = at::empty(item->place.sizes, at::TensorOptions().dtype(item->tensor.scalar_type()));
  auto by_rows = whole->dim() == 0 ? whole->view({1}) : *whole;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto& piece = told[static_cast<size_t>(rank)];
    if (piece.rows == 0) continue;
    auto into = by_rows.narrow(0, piece.start, piece.rows);
    if (rank == 0)
      into.copy_(item->tensor.detach().reshape(into.sizes()));
    else
      receive(into, rank);
  }
  return true;
}

bool PartGathering::gather_slices(const Part& item, Tensor* whole) {
  // As many numbers of each rank: the rows, then ranges.
  constexpr size_t kMostRanges = 3;
  const auto& slice = *item.place.slice;
  LEVIN_CHECK(slice.ranges.size() <= kMostRanges, "[full_state] a part has ", slice.ranges.size(), " ranges");
  auto mine = slice.written_part();
  if (!item.place.writes) mine.ranges.clear();
  std::vector<int64_t> own(2 * (kMostRanges + 1), 0);
  own[0] = mine.rows.first, own[1] = mine.rows.count;
  for (size_t i = 0; i < mine.ranges.size(); ++i)
    own[2 * i + 2] = mine.ranges[i].first, own[2 * i + 3] = mine.ranges[i].count;
  const auto told = group_.all_gather(at::tensor(own, at::kLong));
  std::vector<TensorSlice> slices;
  int64_t covered = 0;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto* numbers = told.const_data_ptr<int64_t>() + static_cast<size_t>(rank) * own.size();
    auto& of_rank = slices.emplace_back(TensorSlice{slice.dim, {}, slice.whole, {numbers[0], numbers[1]}});
    for (size_t i = 1; i <= kMostRanges; ++i)
      if (numbers[2 * i + 1] > 0) of_rank.ranges.push_back({numbers[2 * i], numbers[2 * i + 1]});
    covered += c10::multiply_integers(of_rank.sizes());
  }
  if (covered != c10::multiply_integers(slice.whole)) return false;
  const bool sends = c10::multiply_integers(mine.sizes()) > 0;
  const auto part_of_rank = [&] {
    return item.tensor.detach().narrow(mine.dim, 0, mine.sizes()[static_cast<size_t>(mine.dim)]);
  };
  if (!whole) {
    if (sends) send(part_of_rank());
    return true;
  }
  const auto options = at::TensorOptions().dtype(item.tensor.scalar_type());
  *whole = at::empty(slice.whole, options);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const auto& of_rank = slices[static_cast<size_t>(rank)];
    if (c10::multiply_integers(of_rank.sizes()) == 0) continue;
    auto part = rank == 0 ? part_of_rank().cpu() : at::empty(of_rank.sizes(), options);
    if (rank > 0) receive(part, rank);
    of_rank.put(part, *whole);
  }
  return true;
}

void PartGathering::send(const Tensor& tensor) {
  group_.run("gather", [&](c10d::ProcessGroup& ranks) {
    std::vector<Tensor> sent{bytes_view(tensor.detach().cpu().contiguous())};
    ranks.getBackend(c10::DeviceType::CPU)->send(sent, 0, 0)->wait();
  });
}

void PartGathering::receive(const Tensor& into, int rank) {
  group_.run("gather", [&](c10d::ProcessGroup& ranks) {
    std::vector<Tensor> received{bytes_view(into)};
    ranks.getBackend(c10::DeviceType::CPU)->recv(received, rank, 0)->wait();
  });
}

}  // namespace levin::detail
