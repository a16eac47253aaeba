#include "levin/checkpoint/save_raw.h"

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/together.h"
#include "levin/io/weights/libtorch.h"
#include "levin/io/weights/torch_file.h"

namespace levin {

void save_raw(const std::filesystem::path& path, const Optimizer& optimizer, const SaveRawOptions& options) {
  const auto write = options.libtorch ? write_libtorch_optimizer : write_torch_optimizer;
  if (!options.shards) return write(path, optimizer.state_dict());
  auto& group = options.shards->group();
  StateDict full = full_state_dict(optimizer.state_dict(), *options.shards);
  detail::together(group, [&] {
    if (group.rank() == 0) write(path, full);
  });
}

}  // namespace levin
