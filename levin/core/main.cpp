#include "levin/core/main.h"

#include <charconv>
#include <csignal>
#include <cstdio>
#include <exception>
#include <mutex>
#include <set>
#include <utility>

#include <c10/util/Exception.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"

namespace levin {
namespace {

template <class T>
T parse_number(std::string_view name, const std::string& text, const char* kind) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LEVIN_CHECK(error == std::errc() && end == text.data() + text.size(), "[args] --", name, " \"", text, "\" is not ",
              kind);
  return value;
}

/// Clauses of the notes that are there, and of those that went with an exception that is not printed yet.
struct ShapeNotes {
  std::mutex mutex;
  std::multiset<std::string> here;
  std::set<std::string> gone;
};
ShapeNotes& shape_notes() {
  static auto& notes = *new ShapeNotes();  // one may go when the process ends
  return notes;
}

/// What torch says where tensors do not fit together, outside of a call that names its module and its input.
std::string explained(const std::exception& error) {
  auto line = one_line(error);
  const bool of_shapes = dynamic_cast<const c10::Error*>(&error) && line.find("(unit ") == std::string::npos &&
                         (line.find("shape") != std::string::npos || line.find("size") != std::string::npos);
  if (!of_shapes) return line;
  auto& notes = shape_notes();
  const std::lock_guard lock(notes.mutex);
  notes.gone.insert(notes.here.begin(), notes.here.end());
  for (const auto& clause : std::exchange(notes.gone, {})) line += " (" + clause + ")";
  return line;
}

/// A file that grows past `ulimit -f` is then an error of whoever writes it, which names the file, and not the end of
/// the process.
void refuse_long_files() {
  struct sigaction now {};
  if (::sigaction(SIGXFSZ, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace

ShapeErrorNote::ShapeErrorNote(std::string clause) : clause_(std::move(clause)) {
  const std::lock_guard lock(shape_notes().mutex);
  shape_notes().here.insert(clause_);
}

ShapeErrorNote::~ShapeErrorNote() {
  auto& notes = shape_notes();
  const std::lock_guard lock(notes.mutex);
  notes.here.erase(notes.here.find(clause_));
  if (std::uncaught_exceptions() > 0) notes.gone.insert(clause_);
}

const std::string* Args::find(std::string_view name) const {
  asked_.emplace_back(name);
  static thread_local std::string inline_value;
  for (size_t i = 1; i < values_.size(); ++i) {
    std::string_view word = values_[i];
    if (!word.starts_with("--")) continue;
    word.remove_prefix(2);
    if (word == name) {
      if (i + 1 < values_.size() && !values_[i + 1].starts_with("--")) return &values_[i + 1];
      inline_value.clear();
      return &inline_value;
    }
    if (word.size() > name.size() && word.starts_with(name) && word[name.size()] == '=') {
      inline_value = word.substr(name.size() + 1);
      return &inline_value;
    }
  }
  return nullptr;
}

std::string Args::get(std::string_view name, std::string_view otherwise) const {
  const auto* value = find(name);
  LEVIN_CHECK(!value || !value->empty(), "[args] --", name, " needs a value");
  return value ? *value : std::string(otherwise);
}

int64_t Args::get(std::string_view name, int64_t otherwise) const {
  const auto* value = find(name);
  return value ? parse_number<int64_t>(name, *value, "a whole number") : otherwise;
}

double Args::get(std::string_view name, double otherwise) const {
  const auto* value = find(name);
  return value ? parse_number<double>(name, *value, "a number") : otherwise;
}

bool Args::get(std::string_view name, bool otherwise) const {
  const auto* value = find(name);
  if (!value) return otherwise;
  if (value->empty()) return true;
  for (const char* yes : {"true", "yes", "on", "1"})
    if (*value == yes) return true;
  for (const char* no : {"false", "no", "off", "0"})
    if (*value == no) return false;
  throw Error(detail::concat("[args] --", name, " \"", *value, "\" is not true or false"));
}

bool Args::has(std::string_view name) const {
  return find(name) != nullptr;
}

void Args::check_all_used() const {
  for (size_t i = 1; i < values_.size(); ++i) {
    std::string_view word = values_[i];
    if (!word.starts_with("--")) continue;
    word = word.substr(2, word.find('=') == std::string_view::npos ? word.size() : word.find('=') - 2);
    if (std::find(asked_.begin(), asked_.end(), word) == asked_.end()) fail_unknown("args", "flag", word, asked_);
  }
}

std::string one_line(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string line = torch_error ? torch_error->what_without_backtrace() : error.what();
  const auto end = line.find('\n');
  return end == std::string::npos ? line : line.substr(0, end);
}

int run_main(int argc, char** argv, const std::function<void(Args&)>& body) noexcept {
  refuse_long_files();
  try {
    Args args(argc, argv);
    body(args);
    return 0;
  } catch (const Interrupted& stopped) {
    log_info(one_line(stopped));
    return 128 + stopped.signal();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", explained(error).c_str());
  } catch (...) {
    std::fprintf(stderr, "error: an exception of an unknown type was thrown\n");
  }
  return 1;
}

}  // namespace levin
