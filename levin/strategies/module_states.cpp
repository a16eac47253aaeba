#include "levin/strategies/module_states.h"

#include <unordered_set>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/distributed/checks.h"

namespace levin::detail {
namespace {

template <class Items>
std::vector<NamedState> unique(const Items& items) {
  std::vector<NamedState> states;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : items)
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      states.push_back({item.key(), item.value()});
  return states;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::vector<NamedState> unique_parameters(const torch::nn::Module& module) {
  return unique(module.named_parameters());
}

std::vector<NamedState> unique_buffers(const torch::nn::Module& module) {
  return unique(module.named_buffers());
}

std::vector<NamedState> changing_buffers(const torch::nn::Module& module) {
  auto buffers = unique_buffers(module);
  std::erase_if(buffers, [](const auto& state) { return state.tensor.scalar_type() == at::kByte; });
  return buffers;
}

void check_same_states(std::string_view strategy, Collective& group, std::string_view kind,
                       std::span<const NamedState> states) {
  if (!group.process_group()) return;
  std::string text;
  for (const auto& state : states)
    text += fmt::format("\"{}\" {}{}\n", state.name, describe(state.tensor),
                        state.tensor.requires_grad() || kind == "buffer" ? "" : " frozen");
  // Models are large and equal, so the texts are only sent when their hashes differ.
  const auto hash = static_cast<int64_t>(std::hash<std::string>()(text));
  const auto hashes = group.all_gather(at::tensor({hash}, at::kLong)).reshape({-1});
  if ((hashes == hashes[0]).all().item<bool>()) return;

  const auto all = gather_strings(group, text);
  const auto first = lines_of(all[0]);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto other = lines_of(all[rank]);
    LEVIN_CHECK(first.size() == other.size(), "[", strategy, "] the ranks have different models: ", first.size(), " ",
                kind, "s on rank 0, ", other.size(), " on rank ", rank);
    const auto at = static_cast<size_t>(std::mismatch(first.begin(), first.end(), other.begin()).first - first.begin());
    throw Error(fmt::format("[{}] the ranks have different models: {} {} is {} on rank 0, {} on rank {}", strategy,
                            kind, at, first[at], other[at], rank));
  }
}

void broadcast_states(Collective& group, std::span<const NamedState> states, int src) {
  if (states.empty() || !group.process_group()) return;
  std::vector<Tensor> tensors;
  // A new version counter: what is sent in between two forwards must not void what the first one saved for backward.
  for (const auto& state : states)
    if (state.tensor.numel() > 0) tensors.push_back(state.tensor.variable_data());
  constexpr size_t kBucketBytes = size_t{250} << 20;
  at::NoGradGuard no_grad;
  group.run("ddp", [&](c10d::ProcessGroup& process_group) {
    c10d::broadcast_coalesced(c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(&process_group),
                              tensors, kBucketBytes, src);
  });
}

}  // namespace levin::detail
