#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "levin/loggers/logger.h"

namespace levin {

/// The loggers that have a name on command lines: "tensorboard", "csv", "json", "console".
std::vector<std::string> logger_names();

/// The logger of that name, writing under `root`; null when there is none.
std::shared_ptr<Logger> make_logger(const std::string& name, const std::filesystem::path& root,
                                    const LoggerOptions& options = {});

}  // namespace levin
