#include "tests/trainer/probe_runs.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/files.h"
#include "levin/testing/paths.h"

namespace levin::testing {
namespace fs = std::filesystem;

std::string resume_probe() {
  return test_program("resume_probe");
}

std::unique_ptr<Process> start_probe(const fs::path& folder, const std::vector<std::string>& flags,
                                     std::vector<std::string> environment) {
  std::vector<std::string> command{resume_probe(), "--out", folder.string()};
  command.insert(command.end(), flags.begin(), flags.end());
  environment.emplace_back("OMP_NUM_THREADS=1");
  return std::make_unique<Process>(command, environment);
}

int64_t event_count(const std::string& out, const std::string& event) {
  const auto line = out.find("\nevents");
  const auto at = line == std::string::npos ? line : out.find(" " + event + "=", line);
  return at == std::string::npos ? 0 : std::stoll(out.substr(at + event.size() + 2));
}

std::string csv_of(const std::string& out) {
  const std::string word = "log_dir ";
  const auto at = out.find(word);
  if (at == std::string::npos) return "no log_dir in: " + out;
  const auto first = at + word.size();
  return read_file(fs::path(out.substr(first, out.find('\n', first) - first)) / "metrics.csv");
}

std::string difference(const StateValue& a, const StateValue& b, const std::string& at) {
  if (a.variant().index() != b.variant().index()) return at + ": another kind of value";
  if (a.is_dict()) {
    for (const auto& [name, value] : a.to_dict()) {
      const auto* other = b.to_dict().find(name);
      if (!other) return at + "." + name + ": missing";
      if (const auto text = difference(value, *other, at + "." + name); !text.empty()) return text;
    }
    return a.to_dict().size() == b.to_dict().size() ? "" : at + ": more names";
  }
  if (a.is_list()) {
    if (a.to_list().size() != b.to_list().size()) return at + ": another length";
    for (size_t i = 0; i < a.to_list().size(); ++i)
      if (const auto text = difference(a.to_list()[i], b.to_list()[i], at + "[" + std::to_string(i) + "]");
          !text.empty())
        return text;
    return "";
  }
  if (a.is_tensor()) return a.to_tensor().equal(b.to_tensor()) ? "" : at + ": another tensor";
  std::ostringstream shown;
  const auto show = [&](const auto& v) {
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(v)>>) shown << ' ' << v;
  };
  std::visit(show, a.variant());
  std::visit(show, b.variant());
  const bool same = std::visit(
      [&](const auto& v) {
        using T = std::remove_cvref_t<decltype(v)>;
        if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>)
          return v == std::get<T>(b.variant());
        else
          return true;
      },
      a.variant());
  return same ? "" : at + ": another value" + shown.str();
}

std::string final_difference(const fs::path& a, const fs::path& b) {
  const auto left = load_checkpoint(a / "final.ckpt"), right = load_checkpoint(b / "final.ckpt");
  for (const char* name : {"model", "optimizers", "schedulers", "epoch", "global_step", "loops", "ranks"})
    if (const auto text = difference(left.at(name), right.at(name), name); !text.empty()) return text;
  return "";
}

std::vector<fs::path> whole_checkpoints(const fs::path& folder) {
  std::vector<std::pair<double, fs::path>> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".ckpt" || it->path().filename().string().starts_with('.')) continue;
    try {
      verify_checkpoint(it->path());
      found.emplace_back(checkpoint_info(it->path()).saved_at, it->path());
    } catch (const std::exception& damage) {
      ADD_FAILURE() << damage.what();
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [when, path] : found) paths.push_back(std::move(path));
  return paths;
}

}  // namespace levin::testing
