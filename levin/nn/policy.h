#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "levin/nn/interceptor.h"

namespace torch::nn {
class Module;
}

namespace levin {

/// A unit of a model that a policy chose.
struct SelectedUnit {
  /// "encoder.layers.0"
  std::string name;
  Unit* unit;
  torch::nn::Module* module;
};

/// Which modules below a root are treated as units: sharded, checkpointed, streamed one by one.
class UnitPolicy {
 public:
  /// Chooses below a root; `describe` is how errors call the policy.
  using Choose = std::function<std::vector<SelectedUnit>(torch::nn::Module& root)>;
  UnitPolicy(std::string describe, Choose choose) : describe_(std::move(describe)), choose_(std::move(choose)) {}

  const std::string& describe() const { return describe_; }
  std::vector<SelectedUnit> choose(torch::nn::Module& root) const { return choose_(root); }

 private:
  std::string describe_;
  Choose choose_;
};

/// The units that a policy chooses below `root`, children before their parents, siblings in the order of registration,
/// a module that is registered twice once. The root itself is never among them: whoever asks treats it as the rest. A
/// policy that chooses nothing is an Error that lists the classes of the units there are.
std::vector<SelectedUnit> select_units(torch::nn::Module& root, const UnitPolicy& policy);

namespace detail {
using ClassTest = bool (*)(const torch::nn::Module&);
UnitPolicy by_class(std::vector<std::string> names, std::vector<ClassTest> tests);
std::string type_name(const std::type_info& type);

template <class T>
struct ImplOf {
  using type = T;
};
template <class T>
requires requires {
  typename T::Impl;
}
struct ImplOf<T> {
  using type = typename T::Impl;
};

template <class T>
bool is_class(const torch::nn::Module& module) {
  return dynamic_cast<const typename ImplOf<T>::type*>(&module) != nullptr;
}
}  // namespace detail

namespace policy {

/// Every module of these classes (holders or Impls): `policy::by_class<Block, Head>()`.
template <class... Classes>
UnitPolicy by_class() {
  static_assert(sizeof...(Classes) > 0, "levin: policy::by_class<...>() needs at least one class");
  static_assert((std::is_base_of_v<torch::nn::Module, typename detail::ImplOf<Classes>::type> && ...),
                "levin: policy::by_class<...>() takes module classes (Block or BlockImpl)");
  return detail::by_class({detail::type_name(typeid(typename detail::ImplOf<Classes>::type))...},
                          {&detail::is_class<Classes>...});
}

/// From the leaves up, every unit that has at least `min_params` parameters which no unit below it took. ModuleList and
/// ModuleDict are never taken, MultiheadAttention is neither taken nor looked into: their parameters fall to the
/// parent.
UnitPolicy by_size(int64_t min_params = 100'000'000);

/// Every unit for which `f(name, module)` holds.
UnitPolicy predicate(std::function<bool(const std::string& name, const torch::nn::Module& module)> f);

/// The blocks that repeat: of the unit classes that have at least two modules (not one inside the other) with more than
/// half of all parameters together, the outermost; of several such side by side the one with more parameters.
UnitPolicy repeated();
/// Whether repeated() chooses anything below `root`.
bool has_repeated(torch::nn::Module& root);

/// Every module that was declared with LEVIN_MODULE.
UnitPolicy all_units();

}  // namespace policy

/// Watches units until the end of the first step. A unit whose forward is never called through its interceptors
/// (because the model calls the Impl directly, or not at all) would silently not be sharded or checkpointed; this says
/// so.
class FiredCheck {
 public:
  FiredCheck() = default;
  FiredCheck(std::string operation, std::span<const SelectedUnit> units);

  /// Throws an Error that names the units that did not run; then, or when all did, stops watching.
  void finish();
  bool watching() const { return !attachments_.empty(); }
  /// Which units have run, and that one has run elsewhere (on another rank).
  std::vector<bool> fired() const;
  void mark(size_t unit);

 private:
  struct Mark;
  std::string operation_;
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<Mark>> marks_;
  std::vector<Attachment> attachments_;
};

}  // namespace levin
