#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/checkpoint/module_state.h"
#include "levin/checkpoint/shard_targets.h"
#include "levin/core/state_dict.h"

namespace levin {

class CheckpointFormat;

namespace detail {

/// A tensor of a value that was described and not read.
struct DescribedTensor {
  /// The first name is that of the value.
  std::vector<std::string> path;
  /// On the meta device.
  Tensor like;
  /// Into a contiguous CPU tensor of that shape and dtype.
  std::function<void(Tensor& into)> read;
};

/// A checkpoint of any format, open for reading.
class OpenCheckpoint {
 public:
  virtual ~OpenCheckpoint() = default;

  /// Its path, for messages.
  virtual const std::string& where() const = 0;
  /// Names of the state, in order.
  virtual std::vector<std::string> keys() const = 0;
  virtual bool is_dict(std::string_view key) const = 0;
  /// A value with its tensors.
  virtual StateValue read(std::string_view key) const = 0;
  /// The same, but of tensors that have a target only the rows that it takes.
  virtual StateValue read(std::string_view key, const ShardTargets& targets) const = 0;
  /// A value whose tensors are on the meta device, all but single numbers; `tensors` gets the others, which borrow this
  /// object. `targets` as in read; null: there are none. None: this format reads values as a whole.
  virtual std::optional<StateValue> describe(std::string_view /*key*/, const ShardTargets* /*targets*/,
                                             std::vector<DescribedTensor>& /*tensors*/) const {
    return std::nullopt;
  }
  /// The tensors of a dict, to be read one by one. Borrows this object.
  virtual std::unique_ptr<TensorSource> tensors(std::string_view key) const = 0;
  /// Compares checksums, where the format has them; an Error names the first tensor that is damaged. Of `sharers` that
  /// read together each takes its fraction. `checked` is told of the bytes of each part, by any thread, one at a time.
  virtual void verify(int /*share*/ = 0, int /*sharers*/ = 1,
                      const std::function<void(uint64_t bytes)>& /*checked*/ = {}) const {}

  bool contains(std::string_view key) const;
  /// The name of the state that is meant: the one that was asked for, else "model", else the only one. An Error of
  /// `operation` tells of others; `how` says how one is chosen.
  std::string choose_key(std::string_view operation, const std::string& asked, std::string_view how) const;
};

/// Opens a checkpoint in the format that recognizes it; `own` comes first, and is taken when none does.
std::unique_ptr<OpenCheckpoint> open_checkpoint(const std::filesystem::path& path, const CheckpointFormat* own);

}  // namespace detail
}  // namespace levin
