#pragma once

#include <string>

#include "levin/models/folder.h"
#include "levin/program/flags.h"

namespace levin::cli {

/// Flags of commands that open a model folder: --dtype, --quantize, --device.
struct ModelFlags {
  /// An empty device is the CPU.
  std::string dtype, quantize, device;

  void describe(Flags& flags);
  /// `command` ("levin score") begins the errors: a name that is not known, a device that is not there.
  models::OpenModelOptions options(const std::string& command) const;
};

}  // namespace levin::cli
