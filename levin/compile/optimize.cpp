#include "levin/compile/optimize.h"

#include <cstdlib>
#include <map>
#include <sstream>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "levin/compile/memory.h"
#include "levin/compile/patterns/patterns.h"
#if __has_include("levin/compile/fuse.h")
#include "levin/compile/fuse.h"
#endif
#include "levin/core/error.h"

namespace levin::compile {

std::string remove_dead(Graph& graph) {
  std::vector<bool> wanted(graph.storages.size()), dead(graph.nodes.size(), false);
  for (size_t s = 0; s < wanted.size(); ++s) wanted[s] = graph.storages[s].enters || graph.storages[s].leaves;
  size_t count = 0;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const auto& node = graph.nodes[i];
    bool needed = node.random || node.barrier;
    for (const auto& view : node.writes) needed = needed || wanted[static_cast<size_t>(view.storage)];
    if (!needed) {
      dead[i] = true;
      ++count;
      continue;
    }
    for (const auto& view : node.reads) wanted[static_cast<size_t>(view.storage)] = true;
    for (const auto& view : node.writes) wanted[static_cast<size_t>(view.storage)] = true;
  }
  if (count == 0) return {};
  graph.erase(dead);
  return levin::detail::concat(count, " calls whose results nobody reads");
}

namespace {

std::string key_of(const Graph& graph, const Node& node) {
  auto copy = node;
  copy.writes.clear();
  copy.unit = -1;
  copy.phase = Phase::kOther;
  for (const auto& arg : node.args)
    if (const auto* value = std::get_if<c10::IValue>(&arg))
      if (value->isGenerator() || value->isTensor() || value->isCustomClass()) {
        if (!value->isTensor() || value->toTensor().dim() != 0) return {};
      }
  std::ostringstream key;
  key << graph.print(copy);
  for (const auto& view : node.reads) {
    key << ";" << view.storage << "." << view.version << "+" << view.offset << ":";
    for (const auto stride : view.strides) key << stride << ",";
  }
  key.precision(17);
  for (const auto& arg : node.args)
    if (const auto* value = std::get_if<c10::IValue>(&arg))
      if (value->isDouble()) key << ";" << value->toDouble();
  return key.str();
}

}  // namespace

std::string share_equal(Graph& graph) {
  const GraphIndex index(graph);
  std::map<std::string, size_t> first;
  std::map<StorageId, StorageId> instead;
  std::vector<bool> dead(graph.nodes.size(), false);
  size_t count = 0;
  const auto follow = [&](View& view) {
    const auto found = instead.find(view.storage);
    if (found != instead.end()) view.storage = found->second;
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    auto& node = graph.nodes[i];
    for (auto& view : node.reads) follow(view);
    for (auto& arg : node.args) {
      if (auto* view = std::get_if<View>(&arg)) follow(*view);
      if (auto* list = std::get_if<std::vector<std::optional<View>>>(&arg))
        for (auto& view : *list)
          if (view) follow(*view);
    }
    if (!node.op || node.random || node.barrier || node.writes.empty()) continue;
    bool inner = true;
    for (const auto& view : node.writes) inner = inner && index.is_inner(view.storage);
    if (!inner) continue;
    const auto key = key_of(graph, node);
    if (key.empty()) continue;
    const auto [found, is_new] = first.try_emplace(key, i);
    if (is_new) continue;
    const auto& other = graph.nodes[found->second];
    if (other.writes.size() != node.writes.size()) continue;
    for (size_t w = 0; w < node.writes.size(); ++w) instead[node.writes[w].storage] = other.writes[w].storage;
    dead[i] = true;
    ++count;
  }
  if (count == 0) return {};
  graph.erase(dead);
  return levin::detail::concat(count, " calls that were made before");
}

std::string fill_constants(Graph& graph) {
  static const std::map<std::string, double> fills{{"aten::ones_like", 1}, {"aten::zeros_like", 0}};
  const auto full = c10::Dispatcher::singleton().findSchemaOrThrow("aten::full", "");
  size_t count = 0;
  for (auto& node : graph.nodes) {
    if (!node.op || node.writes.size() != 1 || !node.writes[0].is_contiguous()) continue;
    const auto found = fills.find(node.op->schema().name());
    const bool like = node.op->schema().name() == "aten::full_like";
    if (found == fills.end() && !like) continue;
    const auto& view = node.writes[0];
    const c10::IValue value = like ? *node.number("fill_value") : c10::IValue(found->second);
    node.args = {c10::IValue(view.sizes),
                 value,
                 c10::IValue(static_cast<int64_t>(view.dtype)),
                 c10::IValue(),
                 c10::IValue(graph.device_of(view)),
                 c10::IValue()};
    node.op = full;
    node.reads.clear();
    ++count;
  }
  return count == 0 ? std::string() : levin::detail::concat(count, " constants");
}

std::string fold_copies(Graph& graph) {
  const GraphIndex index(graph);
  struct Place {
    StorageId storage;
    int64_t offset;
  };
  std::map<StorageId, Place> instead;
  std::vector<bool> dead(graph.nodes.size(), false);
  size_t count = 0;
  const auto follow = [&](View& view) {
    const auto found = instead.find(view.storage);
    if (found == instead.end()) return;
    view.storage = found->second.storage;
    view.offset += found->second.offset;
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    auto& node = graph.nodes[i];
    for (auto& view : node.reads) follow(view);
    for (auto& arg : node.args) {
      if (auto* view = std::get_if<View>(&arg)) follow(*view);
      if (auto* list = std::get_if<std::vector<std::optional<View>>>(&arg))
        for (auto& view : *list)
          if (view) follow(*view);
    }
    if (!node.op || node.writes.size() != 1 || node.reads.size() != 1) continue;
    if (!node.is("aten::clone") && !node.is("aten::_to_copy")) continue;
    const auto &from = node.reads[0], &to = node.writes[0];
    if (from.dtype != to.dtype || graph.device_of(from) != graph.device_of(to) || !index.is_inner(to.storage)) continue;
    // Of what it read: versions of this graph are still those of the index.
    if (index.last_version(from.storage) != from.version || to.offset != 0) continue;
    if (graph.storages[static_cast<size_t>(from.storage)].enters) continue;
    bool alike = from.sizes == to.sizes;
    for (size_t d = 0; alike && d < to.sizes.size(); ++d) alike = to.sizes[d] == 1 || from.strides[d] == to.strides[d];
    if (!alike) continue;
    instead[to.storage] = {from.storage, from.offset};
    dead[i] = true;
    ++count;
  }
  if (count == 0) return {};
  graph.erase(dead);
  return levin::detail::concat(count, " copies");
}

std::vector<std::string> optimize(Graph& graph, const std::set<StorageId>& changing) {
  std::vector<std::string> lines;
  const auto note = [&](std::string line) {
    if (!line.empty()) lines.push_back(std::move(line));
  };
  // LEVIN_COMPILE="skip:fuse,skip:patterns" leaves passes out.
  const auto* said = std::getenv("LEVIN_COMPILE");
  const auto skips = [&](const char* pass) {
    return said && std::string_view(said).find(std::string("skip:") + pass) != std::string_view::npos;
  };
  note(fill_constants(graph));
  note(share_equal(graph));
  note(fold_copies(graph));
  if (!skips("patterns"))
    for (auto& line : apply_patterns({graph, changing})) note(std::move(line));
  note(fold_copies(graph));
  note(remove_dead(graph));
#if __has_include("levin/compile/fuse.h")
  if (!skips("fuse")) {
    note(fuse(graph));
    note(remove_dead(graph));
  }
#endif
  return lines;
}

std::optional<Tensor> constant_of(const Graph& graph, const GraphIndex& index, const View& view,
                                  const std::set<StorageId>& changing, std::set<StorageId>& storages) {
  constexpr int64_t kMostElements = int64_t{1} << 26;
  const auto& storage = graph.storages[static_cast<size_t>(view.storage)];
  if (view.numel() > kMostElements) return std::nullopt;
  if (storage.enters) {
    if (index.last_version(view.storage) > 0 || changing.contains(view.storage)) return std::nullopt;
    storages.insert(view.storage);
    return tensor_over(storage.memory, view);
  }
  if (view.version != 1 || index.last_version(view.storage) != 1) return std::nullopt;
  const auto& node = graph.nodes[static_cast<size_t>(index.writer(view))];
  if (!node.op || node.random || node.barrier || node.writes.size() != 1) return std::nullopt;
  torch::jit::Stack stack;
  for (const auto& arg : node.args) {
    if (const auto* read = std::get_if<View>(&arg)) {
      const auto tensor = constant_of(graph, index, *read, changing, storages);
      if (!tensor) return std::nullopt;
      stack.emplace_back(*tensor);
    } else if (const auto* value = std::get_if<c10::IValue>(&arg)) {
      stack.push_back(*value);
    } else {
      return std::nullopt;
    }
  }
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  node.op->callBoxed(stack);
  const auto& made = stack.front().toTensor();
  return tensor_over(made.storage(), view);
}

}  // namespace levin::compile
