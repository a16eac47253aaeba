#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin {

struct ProfiledRun;

/// An action that a profiler knows: a number, so that a step handles no text.
enum class ActionId : int32_t {};

/// Where a report goes.
struct ProfilerOptions {
  /// The folder of the file; by default that of the run's log.
  std::filesystem::path dirpath = {};
  /// Writes the report to dirpath/STAGE-filename-RANK.txt instead of stdout.
  std::string filename = {};
};

/// What a run spends its time on. Actions are registered once, then started and stopped, by one thread.
///
///     const auto step = profiler->register_action("run_training_batch");
///     {
///       levin::Span span(profiler.get(), step);
///       ...
///     }
///     profiler->describe();
class Profiler {
 public:
  explicit Profiler(ProfilerOptions options = {}) : options_(std::move(options)) {}
  virtual ~Profiler() = default;

  /// The same name has the same id.
  virtual ActionId register_action(std::string name) = 0;
  /// An Error when the action is running already, or is not known.
  virtual void start(ActionId action) = 0;
  /// An Error when the action was not started.
  virtual void stop(ActionId action) = 0;
  /// The report.
  virtual std::string summary() const = 0;

  /// A loop of steps follows: for profilers that record some of them (levin/profilers/profile.h).
  virtual void begin_loop(const ProfiledRun&) {}
  /// A step begins, and the one before is over.
  virtual void step() {}
  /// The step is over; what follows until step() belongs to none, such as a validation. Again: nothing.
  virtual void end_step() {}
  /// The loop is over, well or not.
  virtual void end_loop() {}
  /// Whether add_metadata should get "levin_memory", the predicted memory of a training step: asked in each step.
  virtual bool wants_predicted_memory() const { return false; }
  /// A fact about the run, as JSON, for what is recorded from now on.
  virtual void add_metadata(const std::string& /*key*/, const std::string& /*json*/) {}
  /// The files that were written besides the report: traces, snapshots.
  const std::vector<std::filesystem::path>& files() const { return files_; }

  /// Which stage is running ("fit"), on which rank, and the folder of its log. Actions and times continue.
  void setup(std::string stage, std::optional<int> rank = {}, const std::filesystem::path& log_dir = {});
  /// Writes the report: to the file, on every rank, or else to stdout, on rank 0.
  void describe() const;

 protected:
  /// "FIT ", or nothing when no stage was set up.
  std::string title() const;
  const std::filesystem::path& dirpath() const { return options_.dirpath; }
  void set_files(std::vector<std::filesystem::path> files) { files_ = std::move(files); }

 private:
  std::filesystem::path file() const;

  ProfilerOptions options_;
  std::string stage_;
  std::optional<int> rank_;
  std::vector<std::filesystem::path> files_;
};

/// One run of an action, until the end of the scope. A profiler that is not there costs one comparison.
class [[nodiscard]] Span {
 public:
  Span(Profiler* profiler, ActionId action) : profiler_(profiler), action_(action) {
    if (profiler_) profiler_->start(action_);
  }
  ~Span() {
    if (profiler_) stop();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void stop() noexcept;

  Profiler* profiler_;
  ActionId action_;
};

/// The profilers that have a name on command lines: "simple", "pytorch", "memory".
std::vector<std::string> profiler_names();

/// The profiler of that name. An Error that says what there is for any other.
std::shared_ptr<Profiler> make_profiler(const std::string& name);

}  // namespace levin
