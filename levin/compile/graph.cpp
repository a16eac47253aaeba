#include "levin/compile/graph.h"

#include <algorithm>
#include <sstream>

#include "levin/core/error.h"

namespace levin::compile {
namespace {

const std::vector<int32_t> kNobody = {};

std::string joined(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const auto number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

std::string constant_word(const c10::IValue& value) {
  if (value.isNone()) return "None";
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (!tensor.defined()) return "None";
    if (tensor.dim() != 0 || !tensor.is_cpu()) return "tensor";
    std::ostringstream number;
    number << c10::IValue(tensor.item());
    return number.str();
  }
  if (value.isGenerator()) return "generator";
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

int64_t View::numel() const {
  int64_t count = 1;
  for (const auto size : sizes) count *= size;
  return count;
}

bool View::is_contiguous() const {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 0) return true;
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

bool View::is_dense() const {
  std::vector<std::pair<int64_t, int64_t>> order;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    if (sizes[d] != 1) order.emplace_back(strides[d], sizes[d]);
  }
  std::ranges::sort(order);
  int64_t expected = 1;
  for (const auto& [stride, size] : order) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

bool View::same_place(const View& other) const {
  return storage == other.storage && dtype == other.dtype && offset == other.offset && sizes == other.sizes &&
         strides == other.strides;
}

std::string Node::name() const {
  if (call) return call->name();
  const auto& full = op->operator_name();
  return full.overload_name.empty() ? full.name : full.name + "." + full.overload_name;
}

const View* Node::tensor(std::string_view argument) const {
  if (!op) return nullptr;
  const auto place = op->schema().argumentIndexWithName(argument);
  return place ? std::get_if<View>(&args[static_cast<size_t>(*place)]) : nullptr;
}

const c10::IValue* Node::number(std::string_view argument) const {
  if (!op) return nullptr;
  const auto place = op->schema().argumentIndexWithName(argument);
  return place ? std::get_if<c10::IValue>(&args[static_cast<size_t>(*place)]) : nullptr;
}

StorageId Graph::add_storage(c10::Device device, int64_t bytes) {
  storages.push_back({.device = device, .bytes = bytes});
  return static_cast<StorageId>(storages.size()) - 1;
}

View Graph::add_tensor(std::vector<int64_t> sizes, at::ScalarType dtype, c10::Device device) {
  View made{.dtype = dtype, .sizes = std::move(sizes)};
  made.strides.assign(made.sizes.size(), 1);
  for (size_t d = made.sizes.size(); d-- > 1;)
    made.strides[d - 1] = made.strides[d] * std::max<int64_t>(made.sizes[d], 1);
  made.storage = add_storage(device, made.numel() * static_cast<int64_t>(c10::elementSize(dtype)));
  return made;
}

void Graph::renumber() {
  std::vector<int32_t> now(storages.size(), 0);
  const auto set = [&](View& view) { view.version = now[static_cast<size_t>(view.storage)]; };
  for (auto& node : nodes) {
    for (auto& view : node.reads) set(view);
    for (auto& arg : node.args) {
      if (auto* view = std::get_if<View>(&arg)) set(*view);
      if (auto* list = std::get_if<std::vector<std::optional<View>>>(&arg))
        for (auto& view : *list)
          if (view) set(*view);
    }
    std::vector<StorageId> written;
    for (const auto& view : node.writes)
      if (std::ranges::find(written, view.storage) == written.end()) written.push_back(view.storage);
    for (const auto storage : written) ++now[static_cast<size_t>(storage)];
    for (auto& view : node.writes) set(view);
  }
}

void Graph::erase(const std::vector<bool>& dead) {
  size_t kept = 0;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (!dead[i]) {
      if (kept != i) nodes[kept] = std::move(nodes[i]);
      ++kept;
    }
  nodes.resize(kept);
  renumber();
}

void Graph::check() const {
  std::vector<int32_t> now(storages.size(), 0);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& node = nodes[i];
    const auto fits = [&](const View& view) {
      LEVIN_CHECK(view.storage >= 0 && view.storage < static_cast<StorageId>(storages.size()), "[compile] node ", i,
                  " (", node.name(), ") names storage ", view.storage, ", which is none");
      LEVIN_CHECK(view.version == now[static_cast<size_t>(view.storage)], "[compile] node ", i, " (", node.name(),
                  ") names version ", view.version, " of storage ", view.storage, " at version ",
                  now[static_cast<size_t>(view.storage)]);
      if (view.numel() == 0) return;
      int64_t last = view.offset;
      for (size_t d = 0; d < view.sizes.size(); ++d) last += (view.sizes[d] - 1) * view.strides[d];
      LEVIN_CHECK((last + 1) * static_cast<int64_t>(c10::elementSize(view.dtype)) <=
                      storages[static_cast<size_t>(view.storage)].bytes,
                  "[compile] node ", i, " (", node.name(), ") reaches beyond storage ", view.storage);
    };
    for (const auto& view : node.reads) fits(view);
    std::vector<StorageId> written;
    for (const auto& view : node.writes)
      if (std::ranges::find(written, view.storage) == written.end()) written.push_back(view.storage);
    for (const auto storage : written) ++now[static_cast<size_t>(storage)];
    for (const auto& view : node.writes) fits(view);
  }
}

namespace {

std::string word_of(const Graph& graph, const View& view) {
  const auto& storage = graph.storages[static_cast<size_t>(view.storage)];
  auto text = levin::detail::concat(storage.enters ? "@" : "%", view.storage, ".", view.version, ":", view.dtype, "[",
                                    joined(view.sizes), "]");
  if (!view.is_contiguous()) text += "/" + joined(view.strides);
  if (view.offset != 0) text += "+" + std::to_string(view.offset);
  return text;
}

}  // namespace

std::string Graph::print(const Node& node) const {
  std::string text, args;
  for (const auto& view : node.writes) text += (text.empty() ? "" : ", ") + word_of(*this, view);
  const auto add = [&](const std::string& word) { args += (args.empty() ? "" : ", ") + word; };
  if (node.call) {
    for (const auto& view : node.reads) add(word_of(*this, view));
  } else {
    for (const auto& arg : node.args) {
      if (const auto* view = std::get_if<View>(&arg)) {
        add(word_of(*this, *view));
      } else if (const auto* list = std::get_if<std::vector<std::optional<View>>>(&arg)) {
        std::string all;
        for (const auto& each : *list) all += (all.empty() ? "" : ", ") + (each ? word_of(*this, *each) : "None");
        add("[" + all + "]");
      } else {
        add(constant_word(std::get<c10::IValue>(arg)));
      }
    }
  }
  text += " = " + node.name() + "(" + args + ")";
  if (node.unit >= 0) text += "  # " + units[static_cast<size_t>(node.unit)];
  if (node.phase == Phase::kBackward) text += node.unit >= 0 ? ", backward" : "  # backward";
  if (node.call)
    if (const auto more = node.call->text(); !more.empty()) text += "\n" + more;
  return text;
}

std::string Graph::print() const {
  std::string text;
  for (const auto& node : nodes) text += print(node) + "\n";
  return text;
}

GraphIndex::GraphIndex(const Graph& graph) : graph_(graph), of_(graph.storages.size()) {
  for (auto& of : of_) of.readers.resize(1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto place = static_cast<int32_t>(i);
    for (const auto& view : graph.nodes[i].reads) {
      auto& readers = of_[static_cast<size_t>(view.storage)].readers;
      auto& list = readers[static_cast<size_t>(view.version)];
      if (list.empty() || list.back() != place) list.push_back(place);
    }
    for (const auto& view : graph.nodes[i].writes) {
      auto& of = of_[static_cast<size_t>(view.storage)];
      if (!of.writers.empty() && of.writers.back() == place) continue;
      of.writers.push_back(place);
      of.readers.emplace_back();
    }
  }
}

int32_t GraphIndex::writer(StorageId storage, int32_t version) const {
  if (version == 0) return -1;
  return of_[static_cast<size_t>(storage)].writers[static_cast<size_t>(version) - 1];
}

const std::vector<int32_t>& GraphIndex::readers(StorageId storage, int32_t version) const {
  const auto& readers = of_[static_cast<size_t>(storage)].readers;
  return static_cast<size_t>(version) < readers.size() ? readers[static_cast<size_t>(version)] : kNobody;
}

int32_t GraphIndex::last_version(StorageId storage) const {
  return static_cast<int32_t>(of_[static_cast<size_t>(storage)].writers.size());
}

bool GraphIndex::is_inner(StorageId storage) const {
  const auto& of = graph_.storages[static_cast<size_t>(storage)];
  return !of.enters && !of.leaves && last_version(storage) == 1;
}

}  // namespace levin::compile
