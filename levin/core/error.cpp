#include "levin/core/error.h"

namespace levin::detail {

void fail(const std::string& line) {
  throw Error(line);
}

}  // namespace levin::detail
