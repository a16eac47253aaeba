#include "levin/cli/callbacks.h"

#include <fmt/format.h>

#include "levin/core/error.h"

namespace levin::cli {

const std::vector<config::Class>& callback_classes() {
  static const std::vector<config::Class> classes;
  return classes;
}

CallbackRef make_callback(const config::Chosen& chosen) {
  throw Error(fmt::format("[config] \"{}\" is not in the table it was chosen from", chosen.name));
}

}  // namespace levin::cli
