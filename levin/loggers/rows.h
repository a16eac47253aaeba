#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/loggers/logger.h"
#include "levin/loggers/numbers.h"

namespace levin::detail {

/// Rows that are held back. Names are kept once and rows lie in one array, so a row of known names allocates nothing;
/// numbers on a device stay there until read(), which brings all of them with one copy per device and dtype.
class HeldRows {
 public:
  struct Cell {
    size_t name;
    Number value;
  };
  struct Row {
    int64_t step;
    double time;
    std::span<const Cell> cells;
  };

  /// A name that stands twice in the metrics has the last value.
  void add(const Metrics& metrics, int64_t step, double time);
  /// Reads the values that are on a device. Waits for it.
  void read();
  void clear();

  bool empty() const { return heads_.empty(); }
  size_t size() const { return heads_.size(); }
  /// A row, once read() was called.
  Row row(size_t index) const;
  /// All names that any row ever had, in order of appearance; a cell's `name` is an index into them.
  const std::vector<std::string>& names() const { return names_; }
  void forget_names();

 private:
  struct Head {
    int64_t step;
    double time;
    size_t first_cell;
  };
  struct OnDevice {
    at::Tensor tensor;
    size_t cell;
  };

  size_t name_index(const std::string& name);
  /// The cell of a name in the row that begins at cell `first`, made when there is none.
  size_t cell_of(const std::string& name, size_t first);
  void set_cell(size_t at, const MetricValue& value);

  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> index_;
  /// Per name, one behind the cell that it had last.
  std::vector<size_t> last_cell_;
  std::vector<Head> heads_;
  std::vector<Cell> cells_;
  std::vector<OnDevice> on_device_;
};

}  // namespace levin::detail
