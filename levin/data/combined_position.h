#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/core/state_dict.h"

namespace levin {

struct CombineOptions {
  /// "min_size": a pass ends with the shortest loader. "max_size": it ends with the longest, the others have no batch
  /// once they are through. "max_size_cycle": the same, but the others start again. "sequential": one loader after the
  /// other.
  std::string mode = "max_size_cycle";
};

namespace detail {

enum class CombineMode { kMinSize, kMaxSize, kMaxSizeCycle, kSequential };

/// Where a combined loader stands, and where each of its members then is: functions of the epoch and of the batches
/// given out, nothing else.
class CombinedPosition {
 public:
  /// A member's epoch and a batch of it.
  struct Place {
    int64_t epoch;
    int64_t batch;
  };

  CombinedPosition(const CombineOptions& options, std::span<const std::string> names, std::vector<int64_t> sizes);

  int64_t size() const { return size_; }
  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }
  void set_epoch(int64_t epoch) { seek(epoch, 0); }
  void seek(int64_t epoch, int64_t batch);
  /// Starts the next pass: resumes where a loaded state left off, or with the next epoch.
  void begin();
  /// Continues to the next batch; false, and in the next epoch, at the end of the pass.
  bool next();
  /// The batch just advanced to was not given out after all.
  void back() { --batch_; }
  /// Takes the place that members have of which this many batches were given out.
  void resume(int64_t epoch, std::span<const int64_t> member_batches);

  /// The batch that a member gives to the one just advanced to, if any.
  std::optional<Place> giving(size_t member) const;
  /// The epoch of a member, and how many of its batches were given out.
  Place standing(size_t member) const;

 private:
  int64_t offset(size_t member) const;
  int64_t cycles(size_t member) const;

  CombineMode mode_;
  std::vector<int64_t> sizes_;
  int64_t size_ = 0;
  int64_t epoch_ = 0;
  int64_t batch_ = 0;  // given out in this epoch
  bool inside_ = false;
};

/// The states of the members in the state of a combined loader; an Error when it is of other loaders or another mode.
const StateDict& checked_members(const StateDict& state, std::string_view mode, std::span<const std::string> names);

[[noreturn]] void fail_no_batch(std::string_view name);
[[noreturn]] void fail_no_loader(std::string_view name, std::span<const std::string> known);

}  // namespace detail

}  // namespace levin
