#pragma once

#include <memory>
#include <string>
#include <vector>

#include "levin/config/fields.h"
#include "levin/profilers/profiler.h"

namespace levin {

/// A profiler that has a name, and options on command lines.
struct ProfilerClass {
  std::string name;
  std::string help;
  config::AnyOptions (*options)();
  std::shared_ptr<Profiler> (*make)(const config::AnyOptions& options);
};

const std::vector<ProfilerClass>& profiler_classes();

}  // namespace levin
