#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "levin/core/state_dict.h"
#include "levin/loggers/logger.h"
#include "levin/trainer/hooks.h"
#include "levin/trainer/step.h"

namespace levin {
class Fabric;
}

namespace levin::detail {

/// A value on the host, or a tensor of one element on a device, which is read only when somebody must know.
using LoggedValue = std::variant<double, Tensor>;
double metric_number(const LoggedValue& value);

/// What log() was given in one kind of loop: the value of the step, and what becomes the value of the epoch.
///
/// In the steady state a call finds its entry by comparing one name, since hooks log the same values in the same order
/// each time; it allocates nothing, and on the CPU it touches no tensor operation.
class MetricLog {
 public:
  /// `training`: step values are for callbacks too.
  explicit MetricLog(bool training) : training_(training) {}

  struct Call {
    const LogSite* site = nullptr;
    /// The batch under way, for weights; may be empty.
    const AnyBatch* batch = nullptr;
    /// With several evaluation loaders, which one; -1 otherwise.
    int64_t dataloader_idx = -1;
    Fabric* fabric = nullptr;
  };
  void log(const Call& call, std::string_view name, const LoggedValue& value, const LogOptions& options);
  /// The next calls are those of a new batch.
  void start_batch() { cursor_ = 0; }

  /// Values as they are now: of the step or, at the end of an epoch, of the epoch (reduced over the ranks where asked:
  /// every rank must call).
  struct Published {
    MetricMap callback, log, bar;
  };
  /// Of one of several evaluation loaders, or (-1) of what was logged without one.
  void publish_step(Published& into, int64_t dataloader_idx = -1) const;
  void publish_epoch(Published& into, Fabric& fabric);
  /// Whether a logger waits for values of steps.
  bool logs_steps() const { return logs_steps_; }
  bool has_step_values() const { return !entries_.empty(); }
  /// The metrics of the epoch by loader (with a suffix or without).
  std::vector<std::map<std::string, double>> by_loader(size_t loaders, Fabric& fabric);
  /// Forgets the values, not the names.
  void reset();
  void clear() { entries_.clear(), cursor_ = 0, logs_steps_ = false; }

  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  enum class Reduce { kMean, kSum, kMin, kMax };
  struct Entry {
    std::string name, step_name, epoch_name;
    const LogSite* site = nullptr;
    std::string hook;
    int64_t dataloader_idx = -1;
    bool suffixed = false;
    bool on_step = false, on_epoch = false, prog_bar = false, logger = true, sync_dist = false, rank_zero_only = false;
    Reduce reduce = Reduce::kMean;

    bool has_step = false;
    LoggedValue step = 0.0;
    // The epoch so far. A float32 value is added up in float32, as Lightning does, so that the numbers are the same.
    bool has_epoch = false;
    bool wide = false;
    double total = 0;
    Tensor device_total;
    double weight = 0;
    std::optional<LoggedValue> result;
  };

  Entry& entry(const Call& call, std::string_view name, const LogOptions& options);
  Entry make_entry(const Call& call, std::string_view name, const LogOptions& options) const;
  static Reduce reduce_of(std::string_view word);
  static bool agrees(const Entry& entry, const LogOptions& options);
  static void add(Entry& entry, const LoggedValue& value, bool wide, int64_t batch_size);
  LoggedValue epoch_value(Entry& entry, Fabric& fabric);

  bool training_;
  bool logs_steps_ = false;
  std::deque<Entry> entries_;
  size_t cursor_ = 0;
};

}  // namespace levin::detail
