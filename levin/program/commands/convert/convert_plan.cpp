#include "levin/program/commands/convert/convert_plan.h"

#include <map>

#include "levin/core/error.h"
#include "levin/program/commands/name_patterns.h"

namespace levin::cli {
namespace {

/// The selected names as they are renamed, and what they are called in the file.
struct SelectedNames {
  std::vector<std::string> names;
  std::map<std::string, std::string> origin;
};

SelectedNames select_names(const WeightSource& file, const ConvertFlags& flags) {
  SelectedNames selected;
  const auto prefix = flags.strip_prefix.value_or("");
  for (const auto& entry : file.entries()) {
    if (!passes(entry.name, flags.select)) continue;
    auto name = entry.name;
    if (name.starts_with(prefix)) name.erase(0, prefix.size());
    LEVIN_CHECK(selected.origin.emplace(name, entry.name).second, "[levin convert] two tensors would be named \"", name,
                "\"");
    selected.names.push_back(std::move(name));
  }
  LEVIN_CHECK(!selected.names.empty(), "[levin convert] \"", file.path().string(), "\" has ",
              counted(static_cast<int64_t>(file.entries().size()), "tensor"), ", and none of them was selected");
  return selected;
}

std::vector<models::RenamedWeight> rename(const std::vector<std::string>& names, const ConvertFlags& flags) {
  LEVIN_CHECK(!flags.naming.empty() || flags.from_naming.empty(), "[levin convert] --from-naming goes with --naming");
  if (flags.naming.empty()) {
    std::vector<models::RenamedWeight> same;
    for (const auto& name : names) same.push_back({name, {name}});
    return same;
  }
  const auto from = flags.from_naming.empty() ? models::detect_naming(names).scheme : flags.from_naming;
  LEVIN_CHECK(!from.empty(),
              "[levin convert] the names are not of a vit or resnet of torchvision, timm or huggingface, or of a "
              "decoder of huggingface or levin: \"",
              names[0], "\", ... (--strip-prefix may help)");
  return models::plan_naming(names, from, flags.naming);
}

}  // namespace

std::vector<ConvertItem> plan_conversion(const WeightSource& file, const ConvertFlags& flags) {
  const auto [names, origin] = select_names(file, flags);
  const auto wanted = flags.dtype.empty() ? c10::ScalarType::Undefined : dtype_from_name("levin convert", flags.dtype);
  std::vector<ConvertItem> items;
  for (auto& weight : rename(names, flags)) {
    std::vector<std::vector<int64_t>> shapes;
    for (auto& source : weight.sources) {
      source = origin.at(source);
      shapes.push_back(file.at(source).shape);
    }
    const auto& first = file.at(weight.sources[0]);
    LEVIN_CHECK(first.type != c10::ScalarType::Undefined, "[levin convert] \"", first.name, "\" is of ", first.dtype,
                ", which cannot be read");
    const bool cast = wanted != c10::ScalarType::Undefined && c10::isFloatingType(first.type);
    ConvertItem item{std::move(weight), cast ? wanted : first.type};
    item.bytes = c10::elementSize(item.dtype);
    item.shape = models::renamed_shape(item.weight, shapes);
    for (const auto size : item.shape) item.bytes *= static_cast<uint64_t>(size);
    item.weight.name = flags.add_prefix + item.weight.name;
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace levin::cli
