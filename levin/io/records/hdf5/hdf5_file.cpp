#include "levin/io/records/hdf5/hdf5_file.h"

#include <type_traits>

#include <hdf5.h>

#include "levin/core/words.h"

namespace levin::detail {
namespace {

static_assert(std::is_same_v<hid_t, int64_t> && std::is_same_v<herr_t, int>);

std::recursive_mutex& hdf5_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(hdf5_mutex()) {
  ::H5Eget_auto2(H5E_DEFAULT, &print_, &argument_);
  ::H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Lock::~Hdf5Lock() {
  ::H5Eset_auto2(H5E_DEFAULT, print_, argument_);
}

std::string hdf5_reason() {
  std::string reason = "no reason is given";
  // The first entry is the deepest: what really went wrong.
  ::H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* entry, void* out) -> herr_t {
        if (n == 0 && entry->desc) *static_cast<std::string*>(out) = entry->desc;
        return 0;
      },
      &reason);
  return printable(reason);
}

}  // namespace levin::detail
