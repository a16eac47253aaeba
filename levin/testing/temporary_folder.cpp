#include "levin/testing/temporary_folder.h"

#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>

#include <stdlib.h>

namespace levin::testing {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder(const fs::path& parent) {
  auto pattern = (parent / "levin tést XXXXXX").string();
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder: " + pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::permissions(path_, fs::perms::owner_all, ignored);  // a test may have taken them away
  fs::remove_all(path_, ignored);
}

size_t TemporaryFolder::entries() const {
  return static_cast<size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
}

}  // namespace levin::testing
