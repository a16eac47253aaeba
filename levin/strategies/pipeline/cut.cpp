#include "levin/strategies/pipeline/cut.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <set>
#include <unordered_map>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/nn/module_access.h"
#include "levin/nn/tie.h"

namespace levin {
namespace {

std::string child_name(const std::string& parent, const std::string& child) {
  return parent.empty() ? child : parent + "." + child;
}

bool names(const std::vector<std::string>& prefixes, const std::string& name) {
  return std::ranges::any_of(prefixes,
                             [&](const auto& prefix) { return name == prefix || name.starts_with(prefix + "."); });
}

int64_t parameters_of(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : levin::unique_parameters(module)) count += parameter.numel();
  return count;
}

/// Walks the module in the order of registration and gives each tensor the stages that use it.
class Walk {
 public:
  Walk(StageCut& cut, const PipelineOptions& options) : cut_(cut), options_(options) {
    for (size_t i = 0; i < cut.units.size(); ++i) unit_at_.emplace(cut.units[i].module, i);
  }

  void run(torch::nn::Module& root) {
    find_owners(root);
    visit(root, "");
    for (const auto* list : {&options_.first_stage, &options_.last_stage, &options_.every_stage})
      for (const auto& name : *list)
        LEVIN_CHECK(used_.contains(name), "[pipeline] \"", name,
                    "\" is no module or parameter outside of the units of which stages are made");
  }

 private:
  using Module = torch::nn::Module;

  bool find_owners(Module& module) {
    if (unit_at_.contains(&module)) return true;
    bool owns = false;
    for (auto& child : detail::ModuleAccess::children(module)) owns |= find_owners(*child.value());
    if (owns) owners_.insert(&module);
    return owns;
  }

  void visit(Module& module, const std::string& name) {
    if (const auto unit = unit_at_.find(&module); unit != unit_at_.end()) {
      here_ = cut_.stage_of(unit->second);
      return take_all(module, name, here_, /*in_unit=*/true);
    }
    if (owners_.contains(&module)) {
      take_own(module, name, /*stage=*/-1, false);
    } else {
      if (auto* unit = dynamic_cast<Unit*>(&module)) {
        cut_.sides.push_back({name, unit, &module});
        return take_all(module, name, here_, false);
      }
      take_own(module, name, here_, false);
    }
    for (auto& child : detail::ModuleAccess::children(module)) visit(*child.value(), child_name(name, child.key()));
  }

  void take_all(Module& module, const std::string& name, int stage, bool in_unit) {
    take_own(module, name, stage, in_unit);
    for (auto& child : detail::ModuleAccess::children(module))
      take_all(*child.value(), child_name(name, child.key()), stage, in_unit);
  }

  void take_own(Module& module, const std::string& name, int stage, bool in_unit) {
    for (auto& item : detail::ModuleAccess::parameters(module))
      take(item.value(), child_name(name, item.key()), stage, in_unit, true);
    for (auto& item : detail::ModuleAccess::buffers(module))
      take(item.value(), child_name(name, item.key()), stage, in_unit, false);
  }

  void take(const Tensor& tensor, const std::string& name, int stage, bool in_unit, bool is_parameter) {
    if (!tensor.defined()) return;
    const int last = cut_.stages() - 1;
    int home = std::max(stage, 0);
    if (!in_unit) {
      // Buffers outside of units are small, and whoever computes masks and positions needs them.
      if (!is_parameter) stage = -1;
      if (named(options_.first_stage, name)) stage = home = 0;
      if (named(options_.last_stage, name)) stage = home = last;
      if (named(options_.every_stage, name)) stage = -1;
    }
    const auto [known, is_new] = state_at_.emplace(tensor.unsafeGetTensorImpl(), cut_.states.size());
    if (is_new) cut_.states.push_back({name, tensor, {}, tensor.sizes().vec(), is_parameter, in_unit, home});
    auto& state = cut_.states[known->second];
    state.in_unit &= in_unit;
    std::set<int> stages(state.stages.begin(), state.stages.end());
    for (int each = stage < 0 ? 0 : stage; each <= (stage < 0 ? last : stage); ++each) stages.insert(each);
    state.stages.assign(stages.begin(), stages.end());
  }

  bool named(const std::vector<std::string>& prefixes, const std::string& name) {
    for (const auto& prefix : prefixes)
      if (names({prefix}, name)) return used_.insert(prefix), true;
    return false;
  }

  StageCut& cut_;
  const PipelineOptions& options_;
  std::unordered_map<const Module*, size_t> unit_at_;
  std::set<const Module*> owners_;
  std::unordered_map<const c10::TensorImpl*, size_t> state_at_;
  std::set<std::string> used_;
  int here_ = 0;
};

std::vector<size_t> cut_by_names(const StageCut& cut, int stages, const std::vector<std::string>& cut_before) {
  LEVIN_CHECK(static_cast<int>(cut_before.size()) == stages - 1, "[pipeline] cut_before names ", cut_before.size(),
              " units, and ", stages, " stages need ", stages - 1);
  std::vector<std::string> known;
  for (const auto& unit : cut.units) known.push_back(unit.name);
  std::vector<size_t> starts{0};
  for (const auto& name : cut_before) {
    const auto found = std::ranges::find(known, name);
    if (found == known.end()) fail_unknown("pipeline", "unit", name, known);
    const auto at = static_cast<size_t>(found - known.begin());
    LEVIN_CHECK(at > starts.back(), "[pipeline] cut_before must name units in the order of the model, each after the ",
                "first: \"", name, "\" is not behind \"", known[starts.back()], "\"");
    starts.push_back(at);
  }
  return starts;
}

std::vector<size_t> cut_evenly(size_t units, int stages) {
  std::vector<size_t> starts;
  const auto count = static_cast<size_t>(stages);
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    starts.push_back(at);
    at += units / count + (i < units % count ? 1 : 0);  // the last stage has the head besides
  }
  return starts;
}

/// The cut whose most expensive stage is the cheapest: best[s][i] is its cost for the first i units in s stages.
std::vector<size_t> cut_by_costs(const std::vector<double>& costs, int stages) {
  const size_t n = costs.size(), count = static_cast<size_t>(stages);
  std::vector<double> sum(n + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), sum.begin() + 1);
  constexpr auto kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(count + 1, std::vector<double>(n + 1, kNever));
  std::vector<std::vector<size_t>> from(count + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t s = 1; s <= count; ++s)
    for (size_t i = s; i <= n; ++i)
      for (size_t j = s - 1; j < i; ++j)
        if (const auto cost = std::max(best[s - 1][j], sum[i] - sum[j]); cost < best[s][i])
          best[s][i] = cost, from[s][i] = j;
  std::vector<size_t> starts(count);
  for (size_t s = count, i = n; s > 0; --s) starts[s - 1] = i = from[s][i];
  return starts;
}

/// Parameters of each unit; what lies around the units counts with the first and the last.
std::vector<double> sizes_of(torch::nn::Module& module, StageCut cut, const PipelineOptions& options) {
  std::vector<double> sizes;
  for (const auto& unit : cut.units) sizes.push_back(static_cast<double>(parameters_of(*unit.module)));
  cut.starts = {0, 1};  // before and behind the units
  if (cut.units.size() < 2) return sizes;
  Walk(cut, options).run(module);
  for (const auto& state : cut.states) {
    if (!state.is_parameter || state.in_unit) continue;
    const auto count = static_cast<double>(state.tensor.numel());
    if (state.stages.front() == 0) sizes.front() += count;
    if (state.stages.back() == 1) sizes.back() += count;
  }
  return sizes;
}

std::vector<SelectedUnit> units_of(torch::nn::Module& module, const PipelineOptions& options) {
  return select_units(module, options.units ? *options.units : policy::repeated());
}

}  // namespace

int StageCut::stage_of(size_t unit) const {
  return static_cast<int>(std::ranges::upper_bound(starts, unit) - starts.begin()) - 1;
}

StageCut plan_stages(torch::nn::Module& module, int stages, const PipelineOptions& options) {
  static const std::vector<std::string> kBalances{"units", "parameters"};
  if (std::ranges::find(kBalances, options.balance) == kBalances.end())
    fail_unknown("pipeline", "balance", options.balance, kBalances);
  StageCut cut;
  cut.units = units_of(module, options);
  for (size_t i = 0; i < cut.units.size(); ++i)
    for (size_t j = 0; j < cut.units.size(); ++j)
      LEVIN_CHECK(i == j || !cut.units[j].name.starts_with(cut.units[i].name + "."), "[pipeline] unit \"",
                  cut.units[j].name, "\" is inside of \"", cut.units[i].name, "\"; choose units side by side");
  LEVIN_CHECK(static_cast<int>(cut.units.size()) >= stages, "[pipeline] ", stages, " stages need as many units, and ",
              "the model has ", cut.units.size(), " (",
              options.units ? options.units->describe() : std::string("the blocks that repeat"),
              "); use fewer ranks or chunks, or choose smaller units");
  if (!options.cut_before.empty()) {
    cut.starts = cut_by_names(cut, stages, options.cut_before);
  } else if (!options.costs.empty()) {
    LEVIN_CHECK(options.costs.size() == cut.units.size(), "[pipeline] ", options.costs.size(), " costs were given for ",
                cut.units.size(), " units");
    cut.starts = cut_by_costs(options.costs, stages);
  } else if (options.balance == "parameters") {
    cut.starts = cut_by_costs(sizes_of(module, cut, options), stages);
  } else {
    cut.starts = cut_evenly(cut.units.size(), stages);
  }
  Walk(cut, options).run(module);
  return cut;
}

namespace {

/// Adds up the time between the calls of its units.
class UnitTimes final : public Interceptor {
 public:
  UnitTimes(std::vector<SelectedUnit> units, c10::Device device) : units_(std::move(units)), device_(device) {
    seconds.assign(units_.size(), 0);
  }
  void around(Call& call) override {
    const auto start = now();
    call.proceed();
    for (size_t i = 0; i < units_.size(); ++i)
      if (units_[i].unit == &call.unit()) seconds[i] += now() - start;
  }
  std::vector<double> seconds;

 private:
  double now() const {
    if (device_.is_cuda()) c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  std::vector<SelectedUnit> units_;
  c10::Device device_;
};

}  // namespace

std::vector<double> measure_unit_costs(torch::nn::Module& module, const PipelineOptions& options,
                                       const std::function<void()>& run, int times) {
  LEVIN_CHECK(times > 0, "[pipeline] measure_unit_costs needs at least one run");
  const auto units = units_of(module, options);
  const auto parameters = levin::unique_parameters(module);
  const auto device = parameters.empty() ? c10::Device(at::kCPU) : parameters.front().device();
  const auto clock = std::make_shared<UnitTimes>(units, device);
  std::vector<Attachment> attached;
  for (const auto& unit : units) attached.push_back(unit.unit->attach(clock, Order::kProfiler));
  const at::NoGradGuard no_grad;
  run();
  std::ranges::fill(clock->seconds, 0.0);
  for (int i = 0; i < times; ++i) run();
  for (auto& seconds : clock->seconds) seconds = 3 * seconds / times;
  return clock->seconds;
}

}  // namespace levin
