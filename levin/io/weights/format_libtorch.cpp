#include "levin/io/weights/libtorch.h"
#include "levin/io/weights/torch_file.h"
#include "levin/io/weights/weight_formats.h"
#include "levin/io/weights/zip_file.h"

namespace levin {
namespace {

void add_modules(const pickle::Value& value, const std::string& prefix, std::vector<std::string>& into) {
  if (value.class_name().empty()) return;
  for (const auto& [key, item] : value.pairs()) {
    if (item.class_name().empty() || !key.is(pickle::Kind::text)) continue;
    into.push_back(prefix + key.text());
    add_modules(item, prefix + key.text() + ".", into);
  }
}

}  // namespace

std::vector<std::string> libtorch_modules(const std::filesystem::path& path) {
  const TorchFile file(path, {.root = "auto"});
  std::vector<std::string> names;
  add_modules(file.tree(), "", names);
  return names;
}

namespace detail {

bool is_libtorch_file(const std::filesystem::path& path) {
  try {
    if (!is_torch_file(path)) return false;
    const ZipFile zip(path, [](std::string_view name) { return name.ends_with("/constants.pkl"); });
    return !zip.entries().empty();
  } catch (const std::exception&) {
    return false;  // its reader says what is wrong
  }
}

WeightFormat libtorch_format() {
  return {.name = "libtorch",
          .word = "libtorch",
          .endings = {},
          .stem = {},
          .folder_ending = {},
          .matches = is_libtorch_file,
          .open = torch_format().open,
          .write = [](const std::filesystem::path& path, const NamedTensors& tensors) {
            write_libtorch_file(path, tensors);
          }};
}

}  // namespace detail
}  // namespace levin
