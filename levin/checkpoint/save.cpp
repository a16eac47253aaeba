#include "levin/checkpoint/checkpoint_format.h"
#include "levin/distributed/save_mark.h"

namespace levin {
namespace fs = std::filesystem;

void detail::save_checkpoint_dict(const fs::path& path, const StateDict& state, const SaveOptions& options) {
  const SaveMark mark;
  const auto& format = options.format ? *options.format : *checkpoint_formats().front();
  format.save_with(path, state, options);
}

void save_checkpoint(const fs::path& path, const State& state, const SaveOptions& options) {
  detail::save_checkpoint_dict(path, state.state_dict(), options);
}

}  // namespace levin
