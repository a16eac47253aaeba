#include "levin/checkpoint/part_gathering.h"

#include <array>
#include <charconv>
#include <map>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr int64_t kBucket = 1 << 20;
constexpr int64_t kBucketForAll = 32 << 20;
constexpr size_t kMostTogether = 1024;
constexpr size_t kMostRanges = 3;
constexpr char kBetween = '\0';

int64_t numel_of(at::IntArrayRef sizes) {
  return c10::multiply_integers(sizes);
}

int64_t bytes_of(at::IntArrayRef sizes, c10::ScalarType dtype) {
  return numel_of(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
}

Tensor bytes_view(const Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

Tensor empty_bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

}  // namespace

/// What a rank tells of its shard of a tensor; numbers alone, which travel as they are.
struct PartGathering::Figures {
  int64_t start = 0, rows = 0, whole_rows = 0, dtype = -1;
  /// Of the full tensor, and of what this rank sends.
  int64_t bytes = 0, sent = 0;
  /// Of a slice (ShardPlace::slice): the rows, then ranges.
  std::array<int64_t, 2 * (kMostRanges + 1)> slice = {};
};

/// A full tensor under way.
struct PartGathering::Assembly {
  const Part& part;
  std::vector<Figures> told;  // by rank
  Tensor whole = {};

  Assembly(const Part& own, size_t ranks) : part(own), told(ranks) {}

  bool fits() const { return part.place.slice ? slices_fit() : rows_fit(); }
  /// The bytes of the full tensor into which a piece can be received; undefined: it is put there later.
  Tensor place_of(int rank) const {
    const auto& figures = told[static_cast<size_t>(rank)];
    if (!whole.defined() || part.place.slice) return {};
    return bytes_view(by_rows().narrow(0, figures.start, figures.rows));
  }
  void put(int rank, const Tensor& bytes) const {
    if (!whole.defined() || bytes.numel() == 0) return;
    if (!part.place.slice) {
      place_of(rank).copy_(bytes);
      return;
    }
    const auto slice = slice_of(rank);
    auto values = at::empty(slice.sizes(), whole.options());
    bytes_view(values).copy_(bytes);
    slice.put(values, const_cast<Tensor&>(whole));
  }

 private:
  Tensor by_rows() const { return whole.dim() == 0 ? whole.view({1}) : whole; }
  TensorSlice slice_of(int rank) const {
    const auto& numbers = told[static_cast<size_t>(rank)].slice;
    TensorSlice slice{part.place.slice->dim, {}, part.place.slice->whole, {numbers[0], numbers[1]}};
    for (size_t i = 1; i <= kMostRanges; ++i)
      if (numbers[2 * i + 1] > 0) slice.ranges.push_back({numbers[2 * i], numbers[2 * i + 1]});
    return slice;
  }
  bool slices_fit() const {
    int64_t covered = 0;
    for (size_t rank = 0; rank < told.size(); ++rank) {
      if (told[rank].sent == 0) continue;
      if (told[rank].dtype != told[0].dtype) return false;
      covered += numel_of(slice_of(static_cast<int>(rank)).sizes());
    }
    return covered == numel_of(part.place.slice->whole);
  }
  bool rows_fit() const {
    std::map<int64_t, int64_t> pieces;
    for (const auto& figures : told) {
      if (figures.rows == 0) continue;
      if (figures.dtype != told[0].dtype || figures.whole_rows != told[0].whole_rows ||
          figures.bytes != told[0].bytes || !pieces.emplace(figures.start, figures.rows).second)
        return false;
    }
    int64_t reached = 0;
    for (const auto& [start, rows] : pieces) {
      if (start != reached) return false;
      reached = start + rows;
    }
    return reached == told[0].whole_rows;
  }
};

PartGathering::PartGathering(Collective& group, Parts parts, bool to_all)
    : group_(group), parts_(std::move(parts)), to_all_(to_all), fetched_(parts_.size(), false) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    index_.emplace(parts_[i].first, i);
    const auto& slice = parts_[i].second.place.slice;
    LEVIN_CHECK(!slice || slice->ranges.size() <= kMostRanges, "[full_state] a part has ", slice->ranges.size(),
                " ranges");
  }
}

const PartGathering::Part* PartGathering::find(const std::string& id) const {
  const auto found = index_.find(id);
  return found == index_.end() ? nullptr : &parts_[found->second].second;
}

PartGathering::Figures PartGathering::figures_of(const Part* part) {
  Figures figures;
  if (!part) return figures;
  const auto& [tensor, place] = *part;
  figures.dtype = static_cast<int64_t>(tensor.scalar_type());
  figures.bytes = bytes_of(place.slice ? place.slice->whole : place.sizes, tensor.scalar_type());
  if (place.slice) {
    auto mine = place.slice->written_part();
    if (!place.writes) mine.ranges.clear();
    figures.slice[0] = mine.rows.first, figures.slice[1] = mine.rows.count;
    for (size_t i = 0; i < mine.ranges.size(); ++i)
      figures.slice[2 * i + 2] = mine.ranges[i].first, figures.slice[2 * i + 3] = mine.ranges[i].count;
    figures.sent = bytes_of(mine.sizes(), tensor.scalar_type());
    return figures;
  }
  const bool sends = place.writes && tensor.numel() > 0;
  figures.whole_rows = figures.bytes == 0 ? 0 : place.whole_rows();
  if (!sends) return figures;
  figures.start = place.start;
  figures.rows = rows_of(tensor);
  figures.sent = static_cast<int64_t>(tensor.nbytes());
  return figures;
}

/// The bytes that this rank sends of a shard.
Tensor PartGathering::piece_of(const Part& part) {
  auto tensor = part.tensor.detach();
  if (part.place.slice) {
    const auto mine = part.place.slice->written_part();
    tensor = tensor.narrow(mine.dim, 0, mine.sizes()[static_cast<size_t>(mine.dim)]);
  }
  return bytes_view(tensor.cpu().contiguous());
}

/// The tensor there and those after it, as far as they travel together.
std::vector<PartGathering::Asked> PartGathering::bucket_from(size_t index) const {
  const auto limit = to_all_ ? kBucketForAll : kBucket;
  std::vector<Asked> asked;
  int64_t bytes = 0;
  for (size_t i = index; i < parts_.size() && asked.size() < kMostTogether; ++i) {
    const auto& [id, part] = parts_[i];
    if (i > index && fetched_[i]) continue;
    const auto own = figures_of(&part).bytes;
    if (i > index && (bytes + own > limit || ahead_bytes_ > limit)) break;
    asked.push_back({id, own});
    bytes += own;
  }
  return asked;
}

Tensor PartGathering::whole(const std::string& id) {
  const auto at = index_.find(id);
  LEVIN_CHECK(at != index_.end(), "[full_state] rank 0 has no shard of \"", id, "\"");
  if (!ahead_.contains(id)) fetch(bucket_from(at->second));
  auto node = ahead_.extract(id);
  auto tensor = std::move(node.mapped());
  LEVIN_CHECK(tensor.defined(), "[full_state] the shards of \"", id, "\" on the ranks are not one tensor");
  ahead_bytes_ -= static_cast<int64_t>(tensor.nbytes());
  return tensor;
}

void PartGathering::fetch(const std::vector<Asked>& asked) {
  const at::NoGradGuard no_grad;
  broadcast_request(asked);
  const auto ranks = static_cast<size_t>(group_.size());
  std::vector<Assembly> tensors;
  for (const auto& [id, bytes] : asked) tensors.emplace_back(*find(id), ranks);
  std::vector<std::vector<Figures>> told(ranks, std::vector<Figures>(asked.size()));
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (rank > 0) {
      const auto bytes = static_cast<int64_t>(asked.size() * sizeof(Figures));
      receive(at::from_blob(told[rank].data(), {bytes}, at::kByte), static_cast<int>(rank));
    }
    for (size_t i = 0; i < asked.size(); ++i)
      tensors[i].told[rank] = rank > 0 ? told[rank][i] : figures_of(&tensors[i].part);
  }
  for (auto& tensor : tensors) {
    const auto& place = tensor.part.place;
    if (tensor.fits())
      tensor.whole = at::empty(place.slice ? place.slice->whole : place.sizes,
                               at::TensorOptions().dtype(tensor.part.tensor.scalar_type()));
    if (tensor.told[0].sent > 0) tensor.put(0, piece_of(tensor.part));
  }
  for (size_t rank = 1; rank < ranks; ++rank) receive_pieces(static_cast<int>(rank), told[rank], tensors);
  if (to_all_) {
    std::vector<Tensor> bytes;
    for (size_t i = 0; i < asked.size(); ++i)
      bytes.push_back(tensors[i].whole.defined() ? bytes_view(tensors[i].whole)
                                                 : at::zeros({asked[i].bytes}, at::kByte));
    broadcast_bytes(bytes.size() == 1 ? bytes[0] : at::cat(bytes));
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    if (tensors[i].whole.defined()) ahead_bytes_ += static_cast<int64_t>(tensors[i].whole.nbytes());
    fetched_[index_.at(asked[i].id)] = true;
    ahead_[asked[i].id] = std::move(tensors[i].whole);
  }
}

void PartGathering::receive_pieces(int rank, const std::vector<Figures>& told, std::vector<Assembly>& tensors) {
  int64_t all = 0;
  for (const auto& figures : told) all += figures.sent;
  if (all == 0) return;
  if (tensors.size() == 1)
    if (const auto into = tensors[0].place_of(rank); into.defined()) return receive(into, rank);
  const auto bytes = empty_bytes(all);
  receive(bytes, rank);
  for (size_t i = 0, at = 0; i < tensors.size(); ++i) {
    tensors[i].put(rank, bytes.narrow(0, static_cast<int64_t>(at), told[i].sent));
    at += static_cast<size_t>(told[i].sent);
  }
}

void PartGathering::answer(const std::vector<Asked>& asked, const Received& received) {
  const at::NoGradGuard no_grad;
  std::vector<Figures> figures;
  std::vector<Tensor> pieces;
  for (const auto& [id, bytes] : asked) {
    const auto* part = find(id);
    figures.push_back(figures_of(part));
    if (figures.back().sent > 0) pieces.push_back(piece_of(*part));
  }
  const auto bytes = static_cast<int64_t>(figures.size() * sizeof(Figures));
  send(at::from_blob(figures.data(), {bytes}, at::kByte));
  if (!pieces.empty()) send(pieces.size() == 1 ? pieces[0] : at::cat(pieces));
  if (!to_all_) return;
  pieces.clear();
  int64_t all = 0;
  for (const auto& one : asked) all += one.bytes;
  const auto whole_of = [&](const Asked& one) -> Tensor {
    const auto* part = find(one.id);
    if (!part || !received) return {};
    const auto& place = part->place;
    return at::empty(place.slice ? place.slice->whole : place.sizes,
                     at::TensorOptions().dtype(part->tensor.scalar_type()));
  };
  // Where sizes differ rank 0 has found that shards do not fit together, and says so.
  const auto is_of = [](const Tensor& whole, int64_t count) {
    return whole.defined() && static_cast<int64_t>(whole.nbytes()) == count;
  };
  auto first = whole_of(asked[0]);
  const bool alone = asked.size() == 1 && is_of(first, all);
  const auto wholes = alone ? bytes_view(first) : empty_bytes(all);
  broadcast_bytes(wholes);
  int64_t at = 0;
  for (const auto& one : asked) {
    auto whole = at == 0 && first.defined() ? std::move(first) : whole_of(one);
    if (!alone && is_of(whole, one.bytes)) bytes_view(whole).copy_(wholes.narrow(0, at, one.bytes));
    if (whole.defined()) received(*find(one.id), std::move(whole));
    at += one.bytes;
  }
}

void PartGathering::end() {
  broadcast_request({});
}

void PartGathering::serve(const Received& received) {
  for (;;) {
    const auto asked = broadcast_request({});
    if (asked.empty()) return;
    answer(asked, received);
  }
}

/// Rank 0's request, on every rank; an empty one is the end.
std::vector<PartGathering::Asked> PartGathering::broadcast_request(const std::vector<Asked>& asked) {
  std::string text;
  for (const auto& [id, bytes] : asked) text += std::to_string(bytes) + ' ' + id + kBetween;
  auto length = at::tensor({static_cast<int64_t>(text.size())}, at::kLong);
  broadcast_bytes(bytes_view(length));
  text.resize(static_cast<size_t>(length.item<int64_t>()));
  broadcast_bytes(at::from_blob(text.data(), {static_cast<int64_t>(text.size())}, at::kByte));
  std::vector<Asked> read;
  for (size_t at = 0; at < text.size();) {
    const auto end = text.find(kBetween, at), space = text.find(' ', at);
    Asked one;
    std::from_chars(text.data() + at, text.data() + space, one.bytes);
    one.id = text.substr(space + 1, end - space - 1);
    read.push_back(std::move(one));
    at = end + 1;
  }
  return read;
}

void PartGathering::broadcast_bytes(const Tensor& bytes) {
  if (bytes.numel() == 0 || group_.size() == 1) return;
  group_.run("gather", [&](c10d::ProcessGroup& ranks) {
    std::vector<Tensor> all{bytes};
    ranks.getBackend(c10::DeviceType::CPU)->broadcast(all, {})->wait();
  });
}

void PartGathering::send(const Tensor& bytes) {
  group_.run("gather", [&](c10d::ProcessGroup& ranks) {
    std::vector<Tensor> sent{bytes};
    ranks.getBackend(c10::DeviceType::CPU)->send(sent, 0, 0)->wait();
  });
}

void PartGathering::receive(const Tensor& bytes, int rank) {
  group_.run("gather", [&](c10d::ProcessGroup& ranks) {
    std::vector<Tensor> received{bytes};
    ranks.getBackend(c10::DeviceType::CPU)->recv(received, rank, 0)->wait();
  });
}

}  // namespace levin::detail
