#include "levin/strategies/pipeline/stage.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/nn/checkpointing/checkpointing_state.h"

namespace levin {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();
// Boundaries have an order of their own, by which a block knows that it is one (nn::open_block).
constexpr auto kInStage = static_cast<Order>(static_cast<int>(Order::kStage) + 1);

/// Leaves the user's forward where a stage ends. It is no std::exception: nobody who handles errors is to catch it.
struct StageEnd {};

Tensor without_rows(const Tensor& tensor) {
  auto sizes = tensor.sizes().vec();
  sizes.resize(std::max<size_t>(sizes.size(), 1));
  sizes[0] = 0;
  return at::empty(sizes, tensor.options().requires_grad(false));
}

}  // namespace

/// One run of the user's forward.
struct StageModule::Now {
  int stage = 0;
  /// The first unit of the stage, and of the one that follows; kNone: there is none.
  size_t first = 0, next = kNone;
  bool entered = false;
  /// Of skipped units, and how many have been met.
  const std::vector<detail::UnitResult>* skipped = nullptr;
  size_t met = 0;
  std::vector<Tensor> inputs;
  const detail::StageShapes* shapes = nullptr;
  /// Set: results of units are noted.
  std::vector<detail::UnitResult>* noted = nullptr;
  /// The arguments of `next`.
  std::vector<Tensor> arguments;
  size_t last_unit = kNone;
  /// Of placeholders.
  double fill = std::numeric_limits<double>::quiet_NaN();
  /// Placeholders can be differentiated.
  bool with_graph = false;
};

class StageModule::Around final : public Interceptor {
 public:
  Around(StageModule& owner, size_t index, bool is_side) : owner_(owner), index_(index), is_side_(is_side) {}
  void around(Call& call) override {
    if (!owner_.now_ || call.phase() == Phase::kRecompute) return call.proceed();
    is_side_ ? owner_.around_side(call, index_) : owner_.around_unit(call, index_);
  }

 private:
  StageModule& owner_;
  size_t index_;
  bool is_side_;
};

StageModule::StageModule(StageCut cut, std::vector<int> rank_of_stage, int rank)
    : cut_(std::move(cut)), rank_of_stage_(std::move(rank_of_stage)), rank_(rank) {
  LEVIN_CHECK(static_cast<int>(rank_of_stage_.size()) == stages(), "[pipeline] ", rank_of_stage_.size(),
              " ranks were given for ", stages(), " stages");
  const at::NoGradGuard no_grad;
  for (auto& state : cut_.states) {
    if (!state.tensor.defined()) continue;
    device_ = state.tensor.device();
    if (holds(state)) continue;
    state.tensor.set_data(without_rows(state.tensor));
    state.tensor.mutable_grad().reset();
  }
  for (size_t i = 0; i < cut_.units.size(); ++i) {
    const bool is_boundary = i > 0 && cut_.stage_of(i) != cut_.stage_of(i - 1);
    attached_.push_back(
        cut_.units[i].unit->attach(std::make_shared<Around>(*this, i, false), is_boundary ? Order::kStage : kInStage));
  }
  for (size_t i = 0; i < cut_.sides.size(); ++i) {
    bool absent = false;
    for (const auto& parameter : cut_.sides[i].module->parameters())
      for (const auto& state : cut_.states) absent |= state.tensor.is_same(parameter) && !holds(state);
    side_absent_.push_back(absent);
    attached_.push_back(cut_.sides[i].unit->attach(std::make_shared<Around>(*this, i, true), kInStage));
  }
}

StageModule::~StageModule() = default;

std::vector<int> StageModule::holders(const StageCut::State& state) const {
  std::vector<int> ranks;
  for (const int stage : state.stages)
    if (std::ranges::find(ranks, rank_of(stage)) == ranks.end()) ranks.push_back(rank_of(stage));
  std::ranges::sort(ranks);
  return ranks;
}

bool StageModule::holds(const StageCut::State& state) const {
  return std::ranges::any_of(state.stages, [this](int stage) { return rank_of(stage) == rank_; });
}

bool StageModule::call(Now& now, const std::function<Tensor()>& forward, Tensor& result) {
  struct Enter {
    StageModule& owner;
    Enter(StageModule& o, Now& n) : owner(o) { owner.now_ = &n; }
    ~Enter() { owner.now_ = nullptr; }
  };
  try {
    const Enter enter(*this, now);
    result = forward();
    return false;
  } catch (const StageEnd&) {
    return true;
  }
}

StageModule::Now StageModule::begin(int stage, const detail::StageShapes* shapes,
                                    const std::vector<Tensor>& inputs) const {
  Now now;
  now.stage = stage;
  now.first = cut_.starts[static_cast<size_t>(stage)];
  if (stage + 1 < stages()) now.next = cut_.starts[static_cast<size_t>(stage) + 1];
  now.entered = stage == 0;
  now.shapes = shapes;
  now.inputs = inputs;
  if (shapes) now.skipped = &shapes->before;
  return now;
}

StageModule::Output StageModule::run(int stage, const std::function<Tensor()>& forward, detail::StageShapes* shapes,
                                     const std::vector<Tensor>& inputs, detail::StageShapes* next) {
  const bool is_last = stage + 1 == stages();
  const bool is_new = next && next->inputs.empty();
  auto now = begin(stage, shapes, inputs);
  if (is_new) now.noted = &next->before;
  Output output;
  const bool ended = call(now, forward, output.loss);
  LEVIN_CHECK(ended || (is_last && now.entered), "[pipeline] the step returned before unit \"",
              cut_.units[now.entered ? now.next : now.first].name,
              "\" was called; every unit of which stages are made must run, in the order of registration");
  if (!is_last) {
    std::vector<detail::TensorSpec> specs;
    for (const auto& tensor : now.arguments) specs.push_back(detail::TensorSpec::of(tensor));
    if (is_new) {
      next->inputs = specs;
      next->carried = find_carried(now, forward, next->before);
    }
    LEVIN_CHECK(specs == next->inputs, "[pipeline] unit \"", cut_.units[now.next].name,
                "\" is given tensors of other shapes than for the first micro-batch of this shape; shapes must not ",
                "depend on values");
    for (size_t i = 0; i < specs.size(); ++i)
      if (next->carried[i]) output.tensors.push_back(now.arguments[i]);
  }
  if (shapes && !std::exchange(shapes->checked, true)) check_carried(now, output, forward, inputs);
  return output;
}

namespace {

bool has_nan(const StageModule::Output& output) {
  const auto is_nan = [](const Tensor& tensor) {
    return tensor.defined() && !tensor.is_meta() && tensor.is_floating_point() && tensor.isnan().any().item<bool>();
  };
  return is_nan(output.loss) || std::ranges::any_of(output.tensors, is_nan);
}

}  // namespace

/// Calls that only find something out leave buffers outside of units as they were (running statistics), and the random
/// generators: such a call comes with the first step of a process, and a run that resumes must draw as one that did
/// not.
class StageModule::KeptBuffers {
 public:
  KeptBuffers(const StageCut& cut, c10::Device device) : random_({&device, 1}) {
    for (const auto& state : cut.states)
      if (!state.is_parameter && !state.in_unit && !state.tensor.is_meta())
        kept_.emplace_back(state.tensor, state.tensor.detach().clone());
  }
  ~KeptBuffers() {
    // As batch norm writes them: the forward before has kept them for its backward, and no version may tell.
    const at::AutoDispatchBelowADInplaceOrView below;
    for (auto& [tensor, before] : kept_) tensor.copy_(before);
    random_.apply();
  }
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;

 private:
  std::vector<std::pair<Tensor, Tensor>> kept_;
  detail::RngStates random_;
};

// What the first micro-batch gives must not be NaN because of a placeholder: then the stage uses something of the units
// before it that is not among the arguments of its first unit (a connection that skips the cut).
void StageModule::check_carried(const Now& now, const Output& output, const std::function<Tensor()>& forward,
                                const std::vector<Tensor>& inputs) {
  if (!has_nan(output)) return;
  const at::NoGradGuard no_grad;
  const KeptBuffers kept(cut_, device());
  auto again = begin(now.stage, now.shapes, inputs);
  again.fill = 0;
  Output without;
  call(again, forward, without.loss);
  without.tensors = again.arguments;
  LEVIN_CHECK(has_nan(without), "[pipeline] stage ", now.stage, " uses something of the units before \"",
              cut_.units[now.first].name, "\" that this unit is not given, so the model cannot be cut there; choose ",
              "other units, or cut_before");
}

// A comparison with NaN gives a value like others. It is another one than that of the real units, and the same one
// twice; what is drawn at random is not. Only the first unit of a stage could be given the right one.
void StageModule::check_others(const Now& now, const std::vector<Tensor>& arguments, const std::vector<bool>& carried,
                               const std::function<std::vector<Tensor>()>& skip_all) {
  std::vector<Tensor> again;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (carried[i] || at::equal(arguments[i], now.arguments[i])) continue;
    if (again.empty()) again = skip_all();
    LEVIN_CHECK(!at::equal(arguments[i], again[i]), "[pipeline] unit \"", cut_.units[now.next].name,
                "\" is given a tensor of ", arguments[i].scalar_type(),
                " that the units before it decide (a mask made ",
                "of their results?), which later stages do not have; compute it inside the units that use it");
  }
}

// Everything before is skipped, so that what depends on it is NaN, and what each rank makes itself (masks, angles of
// positions) is not. Meta tensors (memory estimates) have no values: there, what depends on it has a graph.
std::vector<bool> StageModule::find_carried(const Now& now, const std::function<Tensor()>& forward,
                                            const std::vector<detail::UnitResult>& before) {
  const bool by_graph = device().is_meta();
  const at::AutoGradMode grad(by_graph);
  const auto& name = cut_.units[now.next].name;
  const KeptBuffers kept(cut_, device());
  const auto skip_all = [&] {
    Now probe;
    probe.with_graph = by_graph;
    probe.stage = now.stage;
    probe.first = probe.next = now.next;
    probe.skipped = &before;
    Tensor result;
    const bool ended = call(probe, forward, result);
    LEVIN_CHECK(ended && probe.arguments.size() == now.arguments.size(), "[pipeline] unit \"", name, "\" is given ",
                now.arguments.size(), " tensors in one call and ", probe.arguments.size(), " in the next");
    return probe.arguments;
  };
  const auto arguments = skip_all();
  std::vector<bool> carried;
  for (const auto& tensor : arguments)
    carried.push_back(tensor.is_floating_point() &&
                      (by_graph ? tensor.requires_grad() : tensor.isnan().any().item<bool>()));
  if (!by_graph) check_others(now, arguments, carried, skip_all);
  LEVIN_CHECK(std::ranges::find(carried, true) != carried.end(), "[pipeline] nothing of what unit \"", name,
              "\" is given comes from the units before it, so the model cannot be cut there");
  return carried;
}

void StageModule::check_order(size_t unit) const {
  LEVIN_CHECK(now_->last_unit == kNone || unit > now_->last_unit, "[pipeline] unit \"", cut_.units[unit].name,
              "\" was called after \"", cut_.units[now_->last_unit].name,
              "\"; a pipeline needs each unit once, in the order of registration");
  now_->last_unit = unit;
}

void StageModule::around_unit(Call& call, size_t unit) {
  auto& now = *now_;
  check_order(unit);
  const auto& name = cut_.units[unit].name;
  if (unit == now.next) end(call);
  if (unit < now.first) return skip(call, name, /*dense=*/false);
  if (unit == now.first && now.stage > 0) enter(call, name);
  LEVIN_CHECK(now.entered, "[pipeline] unit \"", name, "\" was called, and \"", cut_.units[now.first].name,
              "\" before it was not");
  call.proceed();
  note_result(call, name);
}

void StageModule::around_side(Call& call, size_t side) {
  const auto& name = cut_.sides[side].name;
  if (!now_->entered) return skip(call, name, /*dense=*/true);
  LEVIN_CHECK(!side_absent_[side], "[pipeline] \"", name, "\" is called in stage ", now_->stage,
              ", which does not have its parameters; name it in first_stage, last_stage or every_stage of the options");
  call.proceed();
  note_result(call, name);
}

void StageModule::skip(Call& call, const std::string& name, bool dense) {
  auto& now = *now_;
  const auto* result = now.met < now.skipped->size() ? &(*now.skipped)[now.met] : nullptr;
  LEVIN_CHECK(result && result->unit == name, "[pipeline] unit \"", name, "\" is called where the stage before called ",
              result ? "\"" + result->unit + "\"" : "nothing", "; every rank must run the same forward");
  ++now.met;
  size_t at = 0;
  const bool skipped = call.skip([&](Tensor& tensor) {
    if (at < result->tensors.size()) tensor = detail::placeholder(result->tensors[at], device(), dense, now.fill);
    if (now.with_graph && tensor.defined() && tensor.is_floating_point()) tensor.requires_grad_();
    ++at;
  });
  LEVIN_CHECK(skipped && at == result->tensors.size(), "[pipeline] unit \"", name,
              "\" returns a type that cannot be made of tensors alone; return a tensor, a tuple or a plain struct");
  if (now.noted) now.noted->push_back(*result);
}

void StageModule::note_result(Call& call, const std::string& name) {
  if (!now_->noted) return;
  auto& noted = now_->noted->emplace_back();
  noted.unit = name;
  call.each_result([&](Tensor& tensor) { noted.tensors.push_back(detail::TensorSpec::of(tensor)); });
}

void StageModule::enter(Call& call, const std::string& name) {
  auto& now = *now_;
  now.entered = true;
  const auto& shapes = *now.shapes;
  size_t at = 0, carried = 0;
  call.each_input([&](Tensor& tensor) {
    if (at < shapes.carried.size() && shapes.carried[at]) tensor = now.inputs.at(carried++);
    ++at;
  });
  LEVIN_CHECK(at == shapes.carried.size(), "[pipeline] unit \"", name, "\" is given ", at,
              " tensors here, and the stage before counted ", shapes.carried.size());
  now.inputs.clear();
}

void StageModule::end(Call& call) {
  call.each_input([&](Tensor& tensor) { now_->arguments.push_back(tensor); });
  throw StageEnd();
}

StageModule::Shown::Shown(StageModule& owner) : owner_(owner) {
  const at::NoGradGuard no_grad;
  for (auto& state : owner_.cut_.states)
    if (!state.in_unit && !owner_.holds(state))
      state.tensor.set_data(
          detail::placeholder({true, state.tensor.scalar_type(), state.sizes}, state.tensor.device(), false));
}

StageModule::Shown::~Shown() {
  const at::NoGradGuard no_grad;
  for (auto& state : owner_.cut_.states)
    if (!state.in_unit && !owner_.holds(state)) state.tensor.set_data(without_rows(state.tensor));
}

void StageModule::check_unused() const {
  for (const auto& state : cut_.states)
    LEVIN_CHECK(holds(state) || !state.tensor.grad().defined() || state.tensor.grad().numel() == 0, "[pipeline] \"",
                state.name, "\" of stage ", state.stages.front(),
                " was used in a stage of this rank; name it in every_stage of the options");
}

}  // namespace levin
