#include "levin/loggers/logger_names.h"

#include <array>

#include "levin/loggers/console.h"
#include "levin/loggers/csv.h"
#include "levin/loggers/json_lines.h"
#include "levin/loggers/tensorboard.h"

namespace levin {
namespace {

using Root = std::filesystem::path;

struct NamedLogger {
  const char* name;
  std::shared_ptr<Logger> (*make)(const Root& root, const LoggerOptions& options);
};

template <class T>
std::shared_ptr<Logger> make_in_folder(const Root& root, const LoggerOptions& options) {
  return std::make_shared<T>(root, options);
}

std::shared_ptr<Logger> make_console(const Root&, const LoggerOptions&) {
  return std::make_shared<ConsoleLogger>();
}

constexpr std::array kLoggers{
    NamedLogger{"tensorboard", make_in_folder<TensorBoardLogger>},
    NamedLogger{"csv", make_in_folder<CsvLogger>},
    NamedLogger{"json", make_in_folder<JsonLinesLogger>},
    NamedLogger{"console", make_console},
};

}  // namespace

std::vector<std::string> logger_names() {
  std::vector<std::string> names;
  for (const auto& logger : kLoggers) names.emplace_back(logger.name);
  return names;
}

std::shared_ptr<Logger> make_logger(const std::string& name, const Root& root, const LoggerOptions& options) {
  for (const auto& logger : kLoggers)
    if (name == logger.name) return logger.make(root, options);
  return nullptr;
}

}  // namespace levin
