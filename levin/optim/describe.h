#pragma once

#include <string>
#include <utility>
#include <vector>

#include "levin/optim/codecs.h"
#include "levin/optim/registry.h"

namespace levin::optim::detail {

/// Options as fields of a config: those of `Traits::each`, then those that are the same for all groups, which
/// `Traits::shared(options, f)` lists by f(name, value, help).
template <class Traits>
struct OptionFields {
  typename Traits::Options options = {};

  void fields(auto f) {
    Traits::each(options, options,
                 [&](const char* name, auto& value, auto&, const char* help) { f(name, value, help); });
    if constexpr (requires { Traits::shared(options, f); }) Traits::shared(options, f);
  }
};

/// The class of the handle `T`, whose constructor takes the options of `Traits`. Each word of `estimates` stands for
/// some of them.
template <class T, class Traits>
OptimizerClass describe(std::string name, std::string help,
                        std::vector<std::pair<std::string, typename Traits::Options>> estimates) {
  using Fields = OptionFields<Traits>;
  OptimizerClass described{.name = std::move(name), .help = std::move(help)};
  described.options = [] { return config::AnyOptions(Fields{}); };
  described.make = [](const config::AnyOptions& options, std::vector<Tensor> params) -> Optimizer {
    return T(std::move(params), options.get<Fields>().options);
  };
  for (auto& [word, options] : estimates)
    described.estimates.push_back({std::move(word), [options] { return config::AnyOptions(Fields{options}); }});
  return described;
}

// Help that options of several optimizers share.
inline constexpr const char* kLr = "learning rate";
inline constexpr const char* kBetas = "decay of exp_avg and exp_avg_sq, the moments of the gradient";
inline constexpr const char* kEps = "added to the denominator";
inline constexpr const char* kL2 = "L2 penalty: added to the gradient as weight_decay * param";
inline constexpr const char* kDecoupled = "shrinks the parameter itself by lr * weight_decay each step";
inline constexpr const char* kMaximize = "ascend the gradient instead of descending";

}  // namespace levin::optim::detail
