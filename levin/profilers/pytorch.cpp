#include "levin/profilers/pytorch.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/core/trace_span.h"

namespace levin {

PyTorchProfiler::PyTorchProfiler(PyTorchProfilerOptions options)
    : Profiler({.dirpath = options.dirpath, .filename = options.filename}), profile_(std::move(options)) {
  // A span that is open when a recording ends belongs to it up to there.
  profile_.set_before_end([this] {
    while (!open_.empty()) open_.pop_back();
  });
}

PyTorchProfiler::~PyTorchProfiler() = default;

ActionId PyTorchProfiler::register_action(std::string name) {
  const auto [found, is_new] = index_.try_emplace(std::move(name), static_cast<int32_t>(actions_.size()));
  if (is_new) {
    const auto& text = found->first;
    const bool encloses =
        text == "run_training_epoch" || text == "run_training_batch" || text.ends_with(".optimizer_step");
    actions_.push_back({text, encloses});
  }
  return ActionId{found->second};
}

const PyTorchProfiler::Action& PyTorchProfiler::at(ActionId action, const char* what) const {
  const auto index = static_cast<size_t>(action);
  LEVIN_CHECK(index < actions_.size(), "[profiler.", what, "] action ", static_cast<int32_t>(action),
              " is not known; register_action() gives ids");
  return actions_[index];
}

void PyTorchProfiler::start(ActionId action) {
  const auto& entry = at(action, "start");
  if (!profile_.is_recording() || entry.encloses_steps) return;
  open_.push_back({action, std::make_unique<TraceSpan>(entry.name)});
}

void PyTorchProfiler::stop(ActionId action) {
  at(action, "stop");
  // It may have begun before the recording, or have ended with it.
  const auto found =
      std::find_if(open_.rbegin(), open_.rend(), [&](const Open& open) { return open.action == action; });
  if (found != open_.rend()) open_.erase(std::next(found).base());
}

std::string PyTorchProfiler::summary() const {
  if (profile_.recordings() == 0) return {};
  auto text = title() + "Profiler Report\n\n" + profile_.table();
  for (const auto& file : files()) text += "Trace: " + file.string() + "\n";
  return text;
}

void PyTorchProfiler::begin_loop(const ProfiledRun& run) {
  profile_.set_default_folder(dirpath());
  profile_.describe(run);
  is_started_ = false;
}

void PyTorchProfiler::step() {
  if (std::exchange(is_started_, true))
    profile_.step();
  else
    profile_.start();
  set_files(profile_.files());
}

void PyTorchProfiler::end_step() {
  profile_.end_step();
}

bool PyTorchProfiler::wants_predicted_memory() const {
  return !has_predicted_memory_ && profile_.options().profile_memory && !profile_.is_recording();
}

void PyTorchProfiler::add_metadata(const std::string& key, const std::string& json) {
  has_predicted_memory_ |= key == "levin_memory";
  profile_.add_metadata(key, json);
}

void PyTorchProfiler::end_loop() {
  profile_.stop();
  set_files(profile_.files());
}

}  // namespace levin
