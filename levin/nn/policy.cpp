#include "levin/nn/policy.h"

#include <map>
#include <set>
#include <typeindex>
#include <unordered_set>

#include <c10/util/Type.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/nn/module_access.h"
#include "levin/nn/tie.h"
#include "levin/nn/unit.h"

namespace levin {
namespace {

using Module = torch::nn::Module;

std::string below(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

/// Children before parents; the root is not visited.
template <class F>
void post_order(Module& module, const std::string& prefix, std::set<Module*>& seen, const F& f) {
  for (auto& child : detail::ModuleAccess::children(module)) {
    if (!seen.insert(child.value().get()).second) continue;
    const auto name = below(prefix, child.key());
    post_order(*child.value(), name, seen, f);
    f(name, *child.value());
  }
}

template <class F>
void post_order(Module& root, const F& f) {
  std::set<Module*> seen{&root};
  post_order(root, "", seen, f);
}

std::string unit_classes(Module& root) {
  std::map<std::string, int> counts;
  post_order(root, [&](const std::string&, Module& module) {
    if (dynamic_cast<Unit*>(&module)) ++counts[class_name(module)];
  });
  if (counts.empty()) return "there are none: declare modules with LEVIN_MODULE, or use the layers of levin::nn";
  std::vector<std::string> words;
  for (const auto& [name, count] : counts) words.push_back(name + " x" + std::to_string(count));
  return join(words);
}

class BySize {
 public:
  explicit BySize(int64_t min_params) : min_params_(min_params) {}

  std::vector<SelectedUnit> choose(Module& root) {
    visit("", root, true);
    return std::move(chosen_);
  }

 private:
  /// Returns how many parameters of the module are taken by units at or below it.
  int64_t visit(const std::string& name, Module& module, bool is_root) {
    int64_t all = 0;
    for (const auto& parameter : unique_parameters(module)) all += parameter.numel();
    // As in PyTorch, what is not looked into is not taken as a whole either; its parameters fall to the parent.
    if (all < min_params_ || dynamic_cast<torch::nn::MultiheadAttentionImpl*>(&module)) return 0;
    int64_t taken = 0;
    for (auto& child : detail::ModuleAccess::children(module))
      if (seen_.insert(child.value().get()).second) taken += visit(below(name, child.key()), *child.value(), false);
    return !is_root && all - taken >= min_params_ ? take(name, module, all, taken) : taken;
  }

  int64_t take(const std::string& name, Module& module, int64_t all, int64_t taken) {
    auto* unit = dynamic_cast<Unit*>(&module);
    if (!unit || dynamic_cast<torch::nn::ModuleListImpl*>(&module) || dynamic_cast<torch::nn::ModuleDictImpl*>(&module))
      return taken;
    chosen_.push_back({name, unit, &module});
    return all;
  }

  int64_t min_params_;
  std::unordered_set<Module*> seen_;
  std::vector<SelectedUnit> chosen_;
};

/// The modules of one class below a root.
struct UnitClass {
  std::vector<SelectedUnit> units;
  std::set<const Module*> covered;  // they and all below them
  int64_t parameters = 0;
};

void cover(const Module& module, std::set<const Module*>& covered) {
  if (!covered.insert(&module).second) return;
  for (const auto& child : detail::ModuleAccess::children(module)) cover(*child.value(), covered);
}

int64_t count_parameters(const std::vector<SelectedUnit>& units) {
  std::set<const c10::TensorImpl*> seen;
  int64_t sum = 0;
  for (const auto& each : units)
    for (const auto& parameter : unique_parameters(*each.module))
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) sum += parameter.numel();
  return sum;
}

bool lies_below(const UnitClass& inner, const UnitClass& outer) {
  return std::any_of(inner.units.begin(), inner.units.end(),
                     [&](const SelectedUnit& unit) { return outer.covered.contains(unit.module); });
}

std::vector<SelectedUnit> choose_repeated(Module& root) {
  std::map<std::type_index, UnitClass> classes;
  post_order(root, [&](const std::string& name, Module& module) {
    if (auto* unit = dynamic_cast<Unit*>(&module)) classes[typeid(module)].units.push_back({name, unit, &module});
  });
  int64_t all = 0;
  for (const auto& parameter : unique_parameters(root)) all += parameter.numel();
  std::vector<UnitClass*> candidates;
  for (auto& [type, each] : classes) {
    // A module below another of its class is part of that one.
    std::set<const Module*> inner;
    for (const auto& unit : each.units)
      for (const auto& child : detail::ModuleAccess::children(*unit.module)) cover(*child.value(), inner);
    std::erase_if(each.units, [&](const SelectedUnit& unit) { return inner.contains(unit.module); });
    for (const auto& unit : each.units) cover(*unit.module, each.covered);
    each.parameters = count_parameters(each.units);
    if (each.units.size() >= 2 && 2 * each.parameters > all) candidates.push_back(&each);
  }
  const UnitClass* best = nullptr;
  for (const auto* each : candidates) {
    const bool inside = std::any_of(candidates.begin(), candidates.end(), [&](const UnitClass* other) {
      return other != each && lies_below(*each, *other) && !lies_below(*other, *each);
    });
    if (!inside && (!best || each->parameters > best->parameters)) best = each;
  }
  return best ? best->units : std::vector<SelectedUnit>();
}

}  // namespace

std::vector<SelectedUnit> select_units(Module& root, const UnitPolicy& policy) {
  auto chosen = policy.choose(root);
  LEVIN_CHECK(!chosen.empty(), "[select_units] ", policy.describe(), " matches no unit below ", class_name(root),
              " (unit classes: ", unit_classes(root), ")");
  return chosen;
}

namespace detail {

std::string type_name(const std::type_info& type) {
  return c10::demangle(type.name());
}

UnitPolicy by_class(std::vector<std::string> names, std::vector<ClassTest> tests) {
  const auto describe = "policy::by_class<" + join(names) + ">()";
  return UnitPolicy(describe, [tests = std::move(tests), describe](Module& root) {
    std::vector<SelectedUnit> chosen;
    post_order(root, [&](const std::string& name, Module& module) {
      if (std::none_of(tests.begin(), tests.end(), [&](ClassTest test) { return test(module); })) return;
      auto* unit = dynamic_cast<Unit*>(&module);
      LEVIN_CHECK(unit, "[select_units] ", describe, " matches ", name, " (", class_name(module),
                  "), which is no unit; declare the class with LEVIN_MODULE, or use its twin in levin::nn");
      chosen.push_back({name, unit, &module});
    });
    return chosen;
  });
}

}  // namespace detail

namespace policy {

UnitPolicy by_size(int64_t min_params) {
  LEVIN_CHECK(min_params > 0, "[policy.by_size] min_params ", min_params, " must be positive");
  return UnitPolicy("policy::by_size(" + std::to_string(min_params) + ")",
                    [min_params](Module& root) { return BySize(min_params).choose(root); });
}

UnitPolicy predicate(std::function<bool(const std::string&, const Module&)> f) {
  LEVIN_CHECK(f, "[policy.predicate] the function is empty");
  return UnitPolicy("policy::predicate(f)", [f = std::move(f)](Module& root) {
    std::vector<SelectedUnit> chosen;
    post_order(root, [&](const std::string& name, Module& module) {
      auto* unit = dynamic_cast<Unit*>(&module);
      if (unit && f(name, module)) chosen.push_back({name, unit, &module});
    });
    return chosen;
  });
}

UnitPolicy repeated() {
  return UnitPolicy("policy::repeated()", &choose_repeated);
}

bool has_repeated(Module& root) {
  return !choose_repeated(root).empty();
}

UnitPolicy all_units() {
  return UnitPolicy("policy::all_units()", [](Module& root) {
    return predicate([](const std::string&, const Module&) { return true; }).choose(root);
  });
}

}  // namespace policy

// ---- FiredCheck

struct FiredCheck::Mark : Interceptor {
  void around(Call& call) override {
    fired = true;
    call.proceed();
  }
  bool fired = false;
};

FiredCheck::FiredCheck(std::string operation, std::span<const SelectedUnit> units) : operation_(std::move(operation)) {
  for (const auto& each : units) {
    names_.push_back(each.name + " (" + class_name(*each.module) + ")");
    marks_.push_back(std::make_shared<Mark>());
    attachments_.push_back(each.unit->attach(marks_.back(), Order::kProfiler));
  }
}

std::vector<bool> FiredCheck::fired() const {
  std::vector<bool> fired;
  for (const auto& mark : marks_) fired.push_back(mark->fired);
  return fired;
}

void FiredCheck::mark(size_t unit) {
  marks_[unit]->fired = true;
}

void FiredCheck::finish() {
  if (!watching()) return;
  attachments_.clear();
  std::vector<std::string> silent;
  for (size_t i = 0; i < marks_.size(); ++i)
    if (!marks_[i]->fired) silent.push_back(names_[i]);
  if (silent.empty()) return;
  const auto count = silent.size();
  if (count > 4) silent.resize(4);
  detail::fail(
      detail::concat("[", operation_, "] ", count, " of ", marks_.size(),
                     " units did not run in the first step: ", join(silent), count > 4 ? ", ..." : "",
                     "; call them as name(x) or name->forward(x) on the holder, not through the Impl, or leave "
                     "them out of the policy"));
}

}  // namespace levin
