#pragma once

namespace levin::detail {

class Run;

/// Ranks with other options than the others train another model, or wait for them at another place: an Error, on all
/// ranks, that names the first option that differs. Called before the hooks of a fit, and when its optimizers are made.
/// Every rank must call.
void check_same_run(Run& run);

}  // namespace levin::detail
