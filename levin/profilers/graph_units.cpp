#include "levin/profilers/graph_units.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "levin/nn/policy.h"
#include "levin/nn/unit.h"

namespace levin::detail {
namespace {

constexpr std::string_view kReplay = "[CompiledStep]replay#";

std::atomic<int> wanted = 0;
/// The capture under way, for callbacks, which are plain functions.
std::atomic<GraphUnitMarks*> active = nullptr;

struct Known {
  std::mutex mutex;
  int64_t last = 0;
  std::map<int64_t, std::weak_ptr<const GraphUnits>> graphs;
};
Known& known() {
  static Known all;
  return all;
}

struct Entered {
  explicit Entered(GraphUnitMarks& to, GraphUnits::Owner owner) : marks(to) { marks.enter(owner); }
  ~Entered() { marks.leave(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  GraphUnitMarks& marks;
};

struct MarkOfUnit : Interceptor {
  MarkOfUnit(GraphUnitMarks& of, std::shared_ptr<UnitCalls> to, size_t index)
      : marks(of), calls(std::move(to)), unit(index) {}

  void around(Call& call) override {
    const auto first = static_cast<int64_t>(at::sequence_number::peek());
    {
      const Entered entered(marks, {static_cast<int32_t>(unit), call.phase() == Phase::kRecompute});
      call.proceed();
    }
    const auto last = static_cast<int64_t>(at::sequence_number::peek());
    if (last > first) calls->add(unit, at::RecordFunction::currentThreadId(), first, last);
  }
  bool sees_result() const override { return false; }

  GraphUnitMarks& marks;
  std::shared_ptr<UnitCalls> calls;
  size_t unit;
};

struct OpenNode : at::ObserverContext {
  OpenNode(GraphUnitMarks& marks, GraphUnits::Owner owner) : entered(marks, owner) {}
  Entered entered;
};

/// What autograd does with a node: around the node itself come sums of its gradients and their addition to others,
/// which belong to the node's unit too.
std::unique_ptr<at::ObserverContext> begin_evaluation(const at::RecordFunction& function) {
  auto* marks = active.load();
  if (!marks || !std::string_view(function.name()).starts_with("autograd::engine::evaluate_function")) return nullptr;
  return std::make_unique<OpenNode>(*marks, GraphUnits::Owner{-1, /*is_backward=*/true});
}

/// A node of backward begins; it ends with the object.
std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& node) {
  auto* marks = active.load();
  if (!marks) return nullptr;
  return std::make_unique<OpenNode>(
      *marks, GraphUnits::Owner{marks->unit_of(node.forwardThreadId(), node.seqNr()), /*is_backward=*/true});
}
void end_node(const at::RecordFunction&, at::ObserverContext*) {}

}  // namespace

GraphUnitMarks::GraphUnitMarks(const std::vector<torch::nn::Module*>& models, std::function<int64_t()> nodes)
    : nodes_(std::move(nodes)) {
  std::vector<UnitSpanName> names;
  std::vector<Unit*> units;
  for (auto* model : models)
    for (auto& [name, unit] : named_units(*model)) names.push_back(std::move(name)), units.push_back(unit);
  calls_ = std::make_shared<UnitCalls>(std::move(names));
  for (size_t i = 0; i < units.size(); ++i)
    attachments_.push_back(units[i]->attach(std::make_shared<MarkOfUnit>(*this, calls_, i), Order::kProfiler));
  callbacks_ = {
      at::addGlobalCallback(at::RecordFunctionCallback(begin_evaluation, end_node).scopes({at::RecordScope::FUNCTION})),
      at::addGlobalCallback(
          at::RecordFunctionCallback(begin_node, end_node).scopes({at::RecordScope::BACKWARD_FUNCTION}))};
  active = this;
}

GraphUnitMarks::~GraphUnitMarks() {
  active = nullptr;
  for (const auto callback : callbacks_) at::removeCallback(callback);
}

int32_t GraphUnitMarks::unit_of(uint64_t thread, int64_t node) const {
  const auto* found = calls_->find(thread, node);
  return found ? static_cast<int32_t>(found - calls_->units().data()) : -1;
}

void GraphUnitMarks::mark(GraphUnits::Owner owner) {
  marks_.push_back({nodes_(), owner});
}

void GraphUnitMarks::enter(GraphUnits::Owner owner) {
  const std::lock_guard lock(mutex_);
  open_.push_back(owner);
  mark(owner);
}

void GraphUnitMarks::leave() {
  const std::lock_guard lock(mutex_);
  const auto ended = open_.back();
  open_.pop_back();
  // The evaluation of a node knows its unit from the node.
  if (!open_.empty() && open_.back().is_backward && open_.back().unit < 0) open_.back() = ended;
  mark(open_.empty() ? GraphUnits::Owner{} : open_.back());
}

std::shared_ptr<const GraphUnits> GraphUnitMarks::units(const std::vector<bool>& is_kernel) {
  const std::lock_guard lock(mutex_);
  if (is_kernel.empty() || calls_->units().empty()) return nullptr;
  auto made = std::make_shared<GraphUnits>();
  made->units = calls_->units();
  size_t next = 0;
  GraphUnits::Owner owner;
  for (size_t node = 0; node < is_kernel.size(); ++node) {
    for (; next < marks_.size() && marks_[next].node <= static_cast<int64_t>(node); ++next) owner = marks_[next].owner;
    if (is_kernel[node]) made->kernels.push_back(owner);
  }
  auto& all = known();
  const std::lock_guard known_lock(all.mutex);
  std::erase_if(all.graphs, [](const auto& graph) { return graph.second.expired(); });
  made->id = ++all.last;
  all.graphs.emplace(made->id, made);
  return made;
}

WantsGraphUnits::WantsGraphUnits() {
  ++wanted;
}
WantsGraphUnits::~WantsGraphUnits() {
  --wanted;
}
bool graph_units_are_wanted() {
  return wanted > 0;
}

std::shared_ptr<const GraphUnits> find_graph_units(int64_t id) {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  const auto found = all.graphs.find(id);
  return found == all.graphs.end() ? nullptr : found->second.lock();
}

bool has_graph_units() {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  return !all.graphs.empty();
}

std::string replay_span_name(int64_t id) {
  return fmt::format("{}{}", kReplay, id);
}

int64_t replayed_graph(std::string_view span_name) {
  if (!span_name.starts_with(kReplay)) return -1;
  int64_t id = -1;
  const auto number = span_name.substr(kReplay.size());
  std::from_chars(number.data(), number.data() + number.size(), id);
  return id;
}

}  // namespace levin::detail
