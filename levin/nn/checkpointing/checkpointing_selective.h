#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "levin/nn/checkpointing/checkpointing_state.h"

namespace levin::detail {

/// Operators whose results a checkpointed unit keeps.
class KeptOperators {
 public:
  /// Names with their namespace; all overloads that return new tensors. An Error for a name that is not known or that
  /// cannot be kept.
  explicit KeptOperators(const std::vector<std::string>& names);
  bool contains(const c10::OperatorName& name) const { return names_.contains(name); }

 private:
  std::unordered_set<c10::OperatorName> names_;
};

/// Results of those operators in one forward, in the order in which they ran.
class KeptResults {
 public:
  explicit KeptResults(std::shared_ptr<const KeptOperators> operators) : operators_(std::move(operators)) {}

  struct Result {
    c10::OperatorName name;
    std::vector<c10::IValue> values;
    std::vector<int64_t> versions;
    std::optional<RngStates> rng_after;
  };

 private:
  friend class KeptResultsScope;
  friend class KeptResultsAccess;
  std::shared_ptr<const KeptOperators> operators_;
  std::vector<Result> results_;
};

/// While it lives, operators of this thread leave their results there, or take them from there in place of running.
class KeptResultsScope {
 public:
  enum class Mode : uint8_t { kKeep, kReturn };
  /// Null results: nothing changes. `owner` is how errors call the unit.
  KeptResultsScope(KeptResults* results, Mode mode, std::string owner);
  ~KeptResultsScope();
  KeptResultsScope(const KeptResultsScope&) = delete;
  KeptResultsScope& operator=(const KeptResultsScope&) = delete;

 private:
  friend class KeptResultsAccess;
  KeptResults* results_;
  Mode mode_;
  std::string owner_;
  size_t next_ = 0;
  KeptResultsScope* outer_ = nullptr;
  std::optional<c10::impl::IncludeDispatchKeyGuard> include_;
};

}  // namespace levin::detail
