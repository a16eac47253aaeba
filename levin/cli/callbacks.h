#pragma once

#include <vector>

#include "levin/config/fields.h"
#include "levin/trainer/callback.h"

namespace levin::cli {

/// The callbacks that can be chosen by name, with their options.
const std::vector<config::Class>& callback_classes();
CallbackRef make_callback(const config::Chosen& chosen);

}  // namespace levin::cli
