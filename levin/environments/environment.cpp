#include "levin/environments/environment.h"

#include <array>

#include "levin/core/words.h"
#include "levin/environments/variants.h"

namespace levin {
namespace {

struct Variant {
  const char* name;
  /// Null: never found, only chosen by name.
  bool (*found)(const ReadVariable&);
  std::unique_ptr<Environment> (*make)(const ReadVariable&);
};

// In the order of detection. A launcher's variables win over the scheduler's under which it runs.
const std::array kVariants{
    Variant{"torchelastic", detail::found_torchelastic, detail::make_torchelastic},
    Variant{"slurm", detail::found_slurm, detail::make_slurm},
    Variant{"lsf", detail::found_lsf, [](const ReadVariable& read) { return detail::make_lsf(read); }},
    Variant{"mpi", detail::found_mpi, [](const ReadVariable& read) { return detail::make_mpi(read); }},
    Variant{"kubeflow", nullptr, detail::make_kubeflow},
    Variant{"levin", [](const ReadVariable&) { return true; }, detail::make_levin},
};

}  // namespace

std::vector<std::string> environment_names() {
  std::vector<std::string> names{"auto"};
  for (const auto& variant : kVariants) names.emplace_back(variant.name);
  return names;
}

std::unique_ptr<Environment> detect_environment(const std::string& name, const ReadVariable& read) {
  for (const auto& variant : kVariants)
    if (name == "auto" ? variant.found && variant.found(read) : name == variant.name) return variant.make(read);
  fail_unknown("environment", "name", name, environment_names());
}

}  // namespace levin
