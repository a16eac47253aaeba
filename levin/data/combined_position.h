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

/// Where a combined loader stands, and where each of its members then is: functions of where the pass began and of the
/// batches given out since, nothing else.
class CombinedPosition {
 public:
  /// A member's epoch and a batch of it.
  struct Place {
    int64_t epoch;
    int64_t batch;
  };
  /// Where a member begins, and how many batches its pass has.
  struct Standing {
    Place place;
    int64_t size;
  };

  CombinedPosition(const CombineOptions& options, std::span<const std::string> names, std::vector<int64_t> sizes);

  int64_t size() const { return size_; }
  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }
  /// All of an epoch.
  void set_epoch(int64_t epoch);
  void seek(int64_t epoch, int64_t batch);
  /// Starts the next pass: resumes where a loaded state left off, or with the next epoch.
  void begin();
  /// Continues to the next batch; false, and in the next epoch, at the end of the pass.
  bool next();
  /// The batch just advanced to was not given out after all.
  void back() { --batch_; }
  /// Continues an epoch from where its members stand.
  void resume(int64_t epoch, std::vector<Standing> standing);
  /// Whether the epoch began with the first sample of each member.
  bool is_whole() const { return whole_; }

  /// The batch that a member gives to the one just advanced to, if any.
  std::optional<Place> giving(size_t member) const;
  /// The epoch of a member, and how many of its batches were given out.
  Place standing(size_t member) const;

 private:
  size_t longest() const;
  int64_t left(size_t member) const { return origin_[member].size - origin_[member].place.batch; }
  /// Batches of the members before it, of those that come one after the other.
  int64_t offset(size_t member) const;
  int64_t cycles(size_t member) const;
  void count_size();

  CombineMode mode_;
  /// Of whole passes.
  std::vector<int64_t> sizes_;
  std::vector<Standing> origin_;
  /// Batches of the epoch that were given out before the members were at their origins.
  int64_t first_ = 0;
  bool whole_ = true;
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
