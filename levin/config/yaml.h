#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "levin/config/node.h"

namespace levin::config {

/// A YAML text as a tree; every node knows its line. Anchors, aliases and merge keys (`<<`) work. Refused, each with
/// one line that names the place: a key that stands twice, a second document, tags (`!!python/...`), keys that are no
/// plain words, and what is larger than a config ever is (1 MiB, 32 levels, 20 000 values once aliases are written
/// out).
///
/// `operation` stands in front of errors; `name` stands for the text in them.
Node parse_yaml(std::string_view text, const std::string& name, std::string_view operation = "config");
/// The same of a file.
Node read_yaml(const std::filesystem::path& path, std::string_view operation = "config");

/// A text as YAML has it: plain where that is read back as the same, else in double quotes. `quoted`: it must not be
/// taken for a number, a bool or null, so it is quoted when it looks like one.
std::string yaml_scalar(std::string_view text, bool quoted = false);

}  // namespace levin::config
