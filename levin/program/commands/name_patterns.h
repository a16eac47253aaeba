#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace levin::cli {

/// The flags and files of a command that works on weight files.
class WeightFlags {
 public:
  /// `switches` stand alone, `values` take a word (`--to pth` or `--to=pth`) and may come again. An unknown flag, one
  /// without its value, or another number of files than `files` names is an Error.
  WeightFlags(std::string_view command, const std::vector<std::string>& words, std::vector<std::string> switches,
              std::vector<std::string> values, const std::vector<std::string>& files);

  bool has(const std::string& flag) const { return given_.contains(flag); }
  /// The last value of a flag, else `otherwise`.
  std::string get(const std::string& flag, const std::string& otherwise = "") const;
  /// The same, one of the known words.
  std::string get(const std::string& flag, const std::string& otherwise, const std::vector<std::string>& known) const;
  /// Every value of a flag.
  std::vector<std::string> all(const std::string& flag) const;
  /// A number of bytes: 500000000, 500MB, 5GB, 2GiB; 0 when the flag was not given.
  uint64_t bytes(const std::string& flag) const;
  const std::string& file(size_t index) const { return files_[index]; }

 private:
  std::string command_;
  std::map<std::string, std::vector<std::string>> given_;
  std::vector<std::string> files_;
};

/// Whether --help or -h is among the words.
bool wants_help(const std::vector<std::string>& words);

/// Whether a name passes patterns such as "encoder.*"; those that begin with ! exclude. No patterns: everything does.
bool passes(const std::string& name, const std::vector<std::string>& patterns);

}  // namespace levin::cli
