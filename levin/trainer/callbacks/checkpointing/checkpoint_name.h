#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// A pattern for names of checkpoints: "{epoch}", "{step}" and the names of metrics in braces, each with a format
/// behind a colon or without ("{epoch:03d}-{val/loss:.5f}").
class CheckpointName {
 public:
  using MetricLookup = std::function<std::optional<double>(std::string_view name)>;

  /// `insert_names`: "{epoch}" becomes "epoch=3" and not "3". An Error when the pattern or a format is wrong.
  CheckpointName(std::string_view pattern, bool insert_names);

  /// Without ".ckpt". A metric that does not exist is 0. A metric called "epoch" or "step" takes the counter's place.
  std::string format(int64_t epoch, int64_t step, const MetricLookup& metric) const;

 private:
  struct Part {
    std::string text;  // stands before the field
    std::string field;
    std::string format;
  };
  std::vector<Part> parts_;
};

}  // namespace levin
