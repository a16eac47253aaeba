#include "levin/data/text/token_rows.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include "levin/core/error.h"
#include "levin/core/parallel.h"

namespace levin {
namespace {

constexpr int64_t kNoTarget = -100;

Tensor tensor_of(const std::vector<int64_t>& values) {
  auto result = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), result.mutable_data_ptr<int64_t>());
  return result;
}

}  // namespace

std::vector<int64_t> next_token_targets(std::span<const int64_t> ids, std::span<const uint8_t> learned) {
  LEVIN_CHECK(learned.empty() || learned.size() == ids.size(), "[next_token_targets] ", learned.size(), " flags for ",
              ids.size(), " tokens");
  std::vector<int64_t> targets(ids.size(), kNoTarget);
  for (size_t i = 1; i < ids.size(); ++i)
    if (learned.empty() || learned[i]) targets[i - 1] = ids[i];
  return targets;
}

std::vector<TokenRow> encode_rows(int64_t count, const std::function<TokenRow(int64_t)>& encode) {
  std::vector<TokenRow> rows(static_cast<size_t>(count));
  parallel_for(0, count, 16, [&](int64_t begin, int64_t end) {
    for (auto i = begin; i < end; ++i) rows[static_cast<size_t>(i)] = encode(i);
  });
  return rows;
}

std::vector<TokenRow> token_blocks(std::span<const int64_t> ids, int64_t length) {
  LEVIN_CHECK(length >= 1, "[token_blocks] a length of ", length, " is not allowed (1 or more)");
  std::vector<TokenRow> rows;
  const auto size = static_cast<size_t>(length);
  for (size_t begin = 0; begin + size < ids.size(); begin += size) {
    const auto part = ids.subspan(begin, size + 1);
    rows.push_back({.ids = {part.begin(), part.end() - 1}, .targets = {part.begin() + 1, part.end()}});
  }
  return rows;
}

std::vector<TokenRow> packed_rows(std::vector<TokenRow> rows, int64_t length) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a].ids.size() > rows[b].ids.size(); });
  std::vector<TokenRow> packed;
  std::multimap<int64_t, size_t> by_room;
  for (const auto index : order) {
    auto& row = rows[index];
    const auto size = static_cast<int64_t>(row.ids.size());
    LEVIN_CHECK(size <= length, "[packed_rows] a text of ", size, " tokens does not fit into a row of ", length);
    auto place = by_room.lower_bound(size);
    size_t target = packed.size();
    int64_t room = length;
    if (place != by_room.end()) {
      room = place->first, target = place->second;
      by_room.erase(place);
    } else {
      packed.emplace_back();
    }
    auto& into = packed[target];
    const auto number = into.texts.empty() ? 1 : into.texts.back() + 1;
    into.ids.insert(into.ids.end(), row.ids.begin(), row.ids.end());
    into.targets.insert(into.targets.end(), row.targets.begin(), row.targets.end());
    into.texts.insert(into.texts.end(), row.ids.size(), number);
    by_room.emplace(room - size, target);
    row = {};
  }
  return packed;
}

Batch TokenRows::get(int64_t index) const {
  const auto& one = row(index);
  Batch sample{{"ids", tensor_of(one.ids)}};
  sample.set("mask",
             one.texts.empty() ? at::ones({static_cast<int64_t>(one.ids.size())}, at::kLong) : tensor_of(one.texts));
  if (!one.targets.empty()) sample.set("targets", tensor_of(one.targets));
  if (one.label >= 0) sample.set("label", at::scalar_tensor(one.label, at::kLong));
  return sample;
}

std::vector<int64_t> TokenRows::lengths() const {
  std::vector<int64_t> all;
  for (const auto& each : *rows_) all.push_back(static_cast<int64_t>(each.ids.size()));
  return all;
}

int64_t TokenRows::tokens() const {
  const auto all = lengths();
  return std::accumulate(all.begin(), all.end(), int64_t{0});
}

int64_t TokenRows::targets() const {
  int64_t count = 0;
  for (const auto& each : *rows_)
    count +=
        static_cast<int64_t>(each.targets.size()) - std::count(each.targets.begin(), each.targets.end(), kNoTarget);
  return count;
}

Batch PadRows::operator()(const std::vector<Batch>& samples) const {
  LEVIN_CHECK(!samples.empty(), "[PadRows] a batch without rows");
  LEVIN_CHECK(multiple_of >= 1, "[PadRows] multiple_of ", multiple_of, " is not allowed (1 or more)");
  int64_t longest = 0;
  for (const auto& sample : samples) longest = std::max(longest, sample["ids"].size(0));
  LEVIN_CHECK(length == 0 || longest <= length, "[PadRows] a row of ", longest, " tokens is longer than ", length);
  longest = length > 0 ? length : (longest + multiple_of - 1) / multiple_of * multiple_of;
  const auto rows = static_cast<int64_t>(samples.size());
  Batch batch;
  for (const auto& [name, first] : samples[0]) {
    if (first.dim() == 0) {
      std::vector<Tensor> all;
      for (const auto& sample : samples) all.push_back(sample[name]);
      batch.set(name, at::stack(all));
      continue;
    }
    const auto fill = name == "ids" ? pad_token : name == "targets" ? kNoTarget : 0;
    auto together = at::full({rows, longest}, fill, at::kLong);
    for (int64_t i = 0; i < rows; ++i) {
      const auto& one = samples[static_cast<size_t>(i)][name];
      together[i].narrow(0, 0, one.size(0)).copy_(one);
    }
    batch.set(name, together);
  }
  return batch;
}

}  // namespace levin
