#pragma once

#include <vector>

#include "levin/config/fields.h"
#include "levin/trainer/options.h"

namespace levin {

/// Adds a field for everything in TrainerOptions that can be said in words, as "trainer.max_epochs" and so on, bound to
/// `options`. Callbacks are chosen by name: their field stands in levin/cli/callbacks.h.
void add_trainer_fields(std::vector<config::Field>& into, TrainerOptions& options);

}  // namespace levin
