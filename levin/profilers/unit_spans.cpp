#include "levin/profilers/unit_spans.h"

#include <algorithm>
#include <map>
#include <string_view>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "levin/core/trace_span.h"
#include "levin/nn/policy.h"
#include "levin/nn/unit.h"

namespace levin::detail {
namespace {

constexpr std::string_view kUnit = "nn.Module: ";

struct SpanOfUnit : Interceptor {
  SpanOfUnit(std::shared_ptr<UnitCalls> of, size_t index) : calls(std::move(of)), unit(index) {}

  void around(Call& call) override {
    if (!TraceSpan::is_recorded()) return call.proceed();
    const auto first = static_cast<int64_t>(at::sequence_number::peek());
    {
      const TraceSpan span([&] { return calls->units()[unit].text(); });
      call.proceed();
    }
    const auto last = static_cast<int64_t>(at::sequence_number::peek());
    if (last > first) calls->add(unit, at::RecordFunction::currentThreadId(), first, last);
  }
  bool sees_result() const override { return false; }

  std::shared_ptr<UnitCalls> calls;
  size_t unit;
};

bool has_units(const torch::nn::Module& root) {
  const auto all = root.modules(/*include_self=*/false);
  return std::any_of(all.begin(), all.end(),
                     [](const auto& module) { return dynamic_cast<Unit*>(module.get()) != nullptr; });
}

}  // namespace

std::string UnitSpanName::text() const {
  return concat(kUnit, module, " [", path, "]");
}

bool UnitSpanName::parse(const std::string& text, UnitSpanName& name) {
  if (!text.starts_with(kUnit) || !text.ends_with(']')) return false;
  const auto bracket = text.find(" [", kUnit.size());
  if (bracket == std::string::npos) return false;
  name = {text.substr(kUnit.size(), bracket - kUnit.size()), text.substr(bracket + 2, text.size() - bracket - 3)};
  return true;
}

void UnitCalls::add(size_t unit, uint64_t thread, int64_t first, int64_t last) {
  const std::lock_guard lock(mutex_);
  ranges_.push_back({thread, first, last, unit});
  is_sorted_ = false;
}

void UnitCalls::forget() {
  const std::lock_guard lock(mutex_);
  ranges_.clear();
  is_sorted_ = true;
}

const UnitSpanName* UnitCalls::find(uint64_t thread, int64_t node) const {
  const std::lock_guard lock(mutex_);
  // The innermost is the shortest: it begins last, and of those that begin together it ends first.
  if (!is_sorted_)
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
      return std::tuple(a.thread, a.first, -a.last) < std::tuple(b.thread, b.first, -b.last);
    });
  is_sorted_ = true;
  auto at =
      std::upper_bound(ranges_.begin(), ranges_.end(), std::pair(thread, node), [](auto& key, const Range& range) {
        return std::tuple(key.first, key.second) < std::tuple(range.thread, range.first);
      });
  // Ranges nest, and one that has ended before says nothing of those around it.
  constexpr int kFar = 4096;
  for (int steps = 0; at != ranges_.begin() && steps < kFar; ++steps) {
    --at;
    if (at->thread != thread) return nullptr;
    if (node < at->last) return &units_[at->unit];
  }
  return nullptr;
}

std::vector<std::pair<UnitSpanName, Unit*>> named_units(torch::nn::Module& root) {
  std::vector<std::pair<UnitSpanName, Unit*>> units;
  if (!has_units(root)) return units;
  std::map<std::string, int> of_class;
  for (const auto& each : select_units(root, policy::all_units())) {
    const auto name = class_name(*each.module);
    units.emplace_back(UnitSpanName{name + "_" + std::to_string(of_class[name]++), each.name}, each.unit);
  }
  return units;
}

UnitSpans::UnitSpans(torch::nn::Module& root) {
  const auto units = named_units(root);
  if (units.empty()) return;
  std::vector<UnitSpanName> names;
  for (const auto& [name, unit] : units) names.push_back(name);
  calls_ = std::make_shared<UnitCalls>(std::move(names));
  for (size_t i = 0; i < units.size(); ++i)
    attachments_.push_back(units[i].second->attach(std::make_shared<SpanOfUnit>(calls_, i), Order::kProfiler));
}

const UnitSpanName* find_unit(const AllUnitCalls& all, uint64_t thread, int64_t node) {
  for (const auto& calls : all)
    if (const auto* found = calls->find(thread, node)) return found;
  return nullptr;
}

}  // namespace levin::detail
