#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace levin::cli {

/// What the lines of a run depend on: names and values.
using RunSettings = std::vector<std::pair<std::string, std::string>>;

/// The lines of `levin generate`, as they come. A file grows as OUTPUT.part and gets its name when all lines are there;
/// OUTPUT.part.json beside it says which run it belongs to. A run that ends early leaves both, for --resume. The
/// standard output, pipes and devices are written to as they are.
class GenerateOutput {
 public:
  /// `path` "-": the standard output.
  GenerateOutput(std::string path, bool overwrite, bool resume);
  ~GenerateOutput();
  GenerateOutput(const GenerateOutput&) = delete;
  GenerateOutput& operator=(const GenerateOutput&) = delete;

  /// Throws an Error of one line where OUTPUT cannot be written, or an earlier run has left its part and nobody says
  /// what becomes of it.
  void check() const;
  /// Makes OUTPUT.part, or opens what an interrupted run has left. Returns how many lines of that stay: a multiple of
  /// `step`. An Error where that run had other settings.
  int64_t open(const RunSettings& settings, int64_t step);
  /// Appends whole lines, which are there when it returns.
  void write(const std::string& lines);
  /// Lines no longer tell what is done: --resume will refuse what there is.
  void forbid_resume();
  /// Gives the file its name.
  void finish();
  /// Lines go to the standard output.
  bool is_terminal() const { return path_ == "-"; }

 private:
  bool is_file() const;
  bool is_special() const;
  std::string part() const { return path_ + ".part"; }
  std::string part_settings() const { return path_ + ".part.json"; }
  void check_settings(const RunSettings& settings) const;
  int64_t keep_lines(int64_t step);

  const std::string path_;
  const bool overwrite_, resume_;
  int fd_ = -1;
  bool has_lines_ = false, is_whole_ = false;
};

}  // namespace levin::cli
