// Groups on the CPU: block by block in the first cache, one loop an operation, rows or blocks over threads.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "levin/compile/backends/backend.h"
#include "levin/compile/backends/cpu_loops.h"
#include "levin/core/error.h"
#include "levin/core/parallel.h"

namespace levin::compile {
namespace {

using detail::Instruction;
using detail::kLanes;

/// Elements of a block.
constexpr int64_t kBlock = 1024;
/// Elements that are worth a thread.
constexpr int64_t kGrain = 16384;

int64_t bytes_of(Number number) {
  return number == Number::kFloat || number == Number::kBool ? 4 : 8;
}

template <class T>
void set_at(void* buffer, int64_t i, T x) {
  static_cast<T*>(buffer)[i] = x;
}

/// A rectangle of the space: rows [row, row + rows), columns [column, column + columns).
struct Block {
  int64_t row = 0, rows = 1, column = 0, columns = 1;
  int64_t elements() const { return rows * columns; }
};

/// How values are held: one number, one a row, one an element.
enum class Shape : uint8_t { kOne, kRow, kElement };

class CpuKernel final : public GroupKernel {
 public:
  explicit CpuKernel(Group group) : group_(std::move(group)) {
    if (group_.row_dims == static_cast<int>(group_.sizes.size())) {  // elementwise: columns are the innermost dimension
      const bool reduces = std::any_of(group_.values.begin(), group_.values.end(),
                                       [](const Scalar& value) { return is_reduction(value.op); });
      if (reduces || group_.sizes.empty())
        add_dim();
      else
        --group_.row_dims;
    }
    rows_ = group_.rows(), columns_ = group_.columns();
    levels_ = group_.levels();
    phases_ = group_.phases();
    after_ = group_.after_column_sums();
    for (size_t i = 0; i < group_.values.size(); ++i) {
      const auto& value = group_.values[i];
      shapes_.push_back(levels_[i] & kColumnLevel ? Shape::kElement
                        : levels_[i] & kRowLevel  ? Shape::kRow
                                                  : Shape::kOne);
      has_columns_ = has_columns_ || value.op == ScalarOp::kColumnSum;
      if (is_reduction(value.op)) reduces_ = true;
      if (is_reduction(value.op) && value.op != ScalarOp::kColumnSum) {
        shapes_.back() = levels_[i] & kRowLevel ? Shape::kRow : Shape::kOne;
        last_ = std::max(last_, phases_[i]);
      }
    }
    fits_ = columns_ <= kBlock;
    rows_at_once_ = fits_ ? std::max<int64_t>(1, std::min(rows_, kBlock / std::max<int64_t>(1, columns_))) : 1;
    // Reductions make one value of each row, whatever level their arguments have.
    if (rows_at_once_ > 1 || reduces_)
      for (auto& shape : shapes_)
        if (shape == Shape::kOne && reduces_) shape = Shape::kRow;
    for (size_t i = 0; i < group_.values.size(); ++i)
      if (group_.values[i].op == ScalarOp::kNumber) shapes_[i] = Shape::kOne;
    plan();
    if (has_columns_) plan_tail();
  }

  void run(std::span<void* const> tensors) override {
    const bool split =
        reduces_ && !has_columns_ && last_ == 1 && rows_ < 8 && columns_ > 4 * kBlock && steps_[1].stores.empty();
    if (split) return run_split(tensors);
    std::map<int64_t, std::vector<std::vector<double>>> sums;  // by the first unit of each thread: their order is fixed
    std::mutex mutex;
    const auto finish_sums = [&](int64_t from, std::vector<std::vector<double>>&& mine) {
      if (!has_columns_) return;
      const std::lock_guard lock(mutex);
      sums.emplace(from, std::move(mine));
    };
    if (!reduces_ && !fits_) {  // long columns, elementwise: parts of rows
      const int64_t parts = (columns_ + kBlock - 1) / kBlock;
      parallel_for(0, rows_ * parts, std::max<int64_t>(1, kGrain / kBlock), [&](int64_t from, int64_t to) {
        State state(*this, tensors);
        for (int64_t unit = from; unit < to; ++unit) {
          const int64_t column = unit % parts * kBlock;
          state.pass(0, {unit / parts, 1, column, std::min(kBlock, columns_ - column)});
        }
      });
      return;
    }
    const int64_t units = (rows_ + rows_at_once_ - 1) / rows_at_once_;
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, rows_at_once_ * columns_));
    parallel_for(0, units, grain, [&](int64_t from, int64_t to) {
      State state(*this, tensors);
      for (int64_t unit = from; unit < to; ++unit) {
        const int64_t row = unit * rows_at_once_;
        state.rows(row, std::min(rows_at_once_, rows_ - row));
      }
      finish_sums(from, std::move(state.sums));
    });
    if (has_columns_) store_columns(tensors, sums);
  }

 private:
  struct Step {
    std::vector<int> values;      // to compute, in order
    std::vector<int> row_values;  // before these: of rows, or one for all
    std::vector<int> reductions, column_sums, stores;
  };

  void add_dim() {
    group_.sizes.push_back(1);
    for (auto& access : group_.accesses) access.strides.push_back(0);
    for (auto& store : group_.stores) store.access.strides.push_back(0);
  }

  const Scalar& value(int i) const { return group_.values[static_cast<size_t>(i)]; }
  Shape shape(int i) const { return shapes_[static_cast<size_t>(i)]; }

  bool steps_through_columns(const Access& access) const {
    for (size_t d = static_cast<size_t>(group_.row_dims); d < group_.sizes.size(); ++d)
      if (access.strides[d] != 0 && group_.sizes[d] > 1) return true;
    return false;
  }
  bool is_element_store(const GroupStore& store) const {
    return shape(store.value) == Shape::kElement || !reduces_ || steps_through_columns(store.access);
  }

  void plan() {
    steps_.resize(static_cast<size_t>(last_) + 1);
    for (size_t i = 0; i < group_.values.size(); ++i) {
      const auto& of = group_.values[i];
      if (!is_reduction(of.op)) continue;
      auto& step = steps_[static_cast<size_t>(phases_[i]) - 1];
      (of.op == ScalarOp::kColumnSum ? step.column_sums : step.reductions).push_back(static_cast<int>(i));
    }
    for (size_t s = 0; s < group_.stores.size(); ++s) {
      const auto& store = group_.stores[s];
      if (after_[static_cast<size_t>(store.value)]) continue;
      if (!is_element_store(store))
        row_stores_.push_back(static_cast<int>(s));
      else
        steps_[static_cast<size_t>(group_.is_over(store) ? last_ : phases_[static_cast<size_t>(store.value)])]
            .stores.push_back(static_cast<int>(s));
    }
    std::vector<bool> done(group_.values.size(), false), wanted_rows(group_.values.size(), false);
    for (size_t p = 0; p < steps_.size(); ++p) {
      auto& step = steps_[p];
      for (size_t i = 0; i < group_.values.size(); ++i) {
        if (done[i] || after_[i] || shapes_[i] == Shape::kElement || phases_[i] > static_cast<int>(p)) continue;
        done[i] = true;
        if (!is_reduction(group_.values[i].op)) step.row_values.push_back(static_cast<int>(i));
      }
      std::vector<bool> wanted(group_.values.size(), false);
      for (const int i : step.reductions) wanted[static_cast<size_t>(value(i).args[0])] = true;
      for (const int i : step.column_sums) wanted[static_cast<size_t>(value(i).args[0])] = true;
      for (const int s : step.stores) wanted[static_cast<size_t>(group_.stores[static_cast<size_t>(s)].value)] = true;
      for (size_t i = group_.values.size(); i-- > 0;) {
        if (!wanted[i] || shapes_[i] != Shape::kElement || (fits_ && done[i])) continue;
        step.values.push_back(static_cast<int>(i));
        if (fits_) done[i] = true;
        for (const int arg : group_.values[i].args)
          if (arg >= 0) wanted[static_cast<size_t>(arg)] = true;
      }
      std::reverse(step.values.begin(), step.values.end());
    }
    // Places of values in one thread's memory. Those of elements share where the lives of two do not meet.
    places_.assign(group_.values.size(), 0);
    places_by_step_.assign(steps_.size(), std::vector<int64_t>(group_.values.size(), -1));
    struct Free {
      int64_t place, bytes;
    };
    std::vector<Free> free;
    std::vector<std::pair<size_t, size_t>> last_use(group_.values.size(), {0, 0});
    for (size_t p = 0; p < steps_.size(); ++p) {
      const auto use = [&](int i, size_t when) { last_use[static_cast<size_t>(i)] = {p, when}; };
      for (size_t k = 0; k < steps_[p].values.size(); ++k)
        for (const int arg : value(steps_[p].values[k]).args)
          if (arg >= 0) use(arg, k);
      for (const int i : steps_[p].reductions) use(value(i).args[0], SIZE_MAX);
      for (const int i : steps_[p].column_sums) use(value(i).args[0], SIZE_MAX);
      for (const int s : steps_[p].stores) use(group_.stores[static_cast<size_t>(s)].value, SIZE_MAX);
    }
    const auto take = [&](int64_t bytes) {
      for (auto at = free.begin(); at != free.end(); ++at)
        if (at->bytes == bytes) {
          const auto place = at->place;
          free.erase(at);
          return place;
        }
      const auto place = memory_;
      memory_ += bytes;
      return place;
    };
    const int64_t block = rows_at_once_ * std::min(columns_, kBlock) + kLanes;
    for (size_t i = 0; i < group_.values.size(); ++i)
      if (shapes_[i] != Shape::kElement) {
        places_[i] = memory_;
        memory_ += round_up((shapes_[i] == Shape::kRow ? rows_at_once_ + kLanes : kLanes) * 8);
      }
    for (size_t p = 0; p < steps_.size(); ++p) {
      for (size_t k = 0; k < steps_[p].values.size(); ++k) {
        const auto i = static_cast<size_t>(steps_[p].values[k]);
        places_[i] = places_by_step_[p][i] = take(round_up(block * bytes_of(group_.values[i].number)));
        std::vector<int> seen;
        for (const int arg : group_.values[i].args) {
          if (arg < 0 || shape(arg) != Shape::kElement || std::find(seen.begin(), seen.end(), arg) != seen.end())
            continue;
          seen.push_back(arg);
          if (last_use[static_cast<size_t>(arg)] == std::pair{p, k} &&
              places_by_step_[p][static_cast<size_t>(arg)] >= 0)
            free.push_back(
                {places_by_step_[p][static_cast<size_t>(arg)], round_up(block * bytes_of(value(arg).number))});
        }
      }
      if (fits_) continue;
      free.clear();  // another pass computes again: everything of elements may be used again
      for (const int i : steps_[p].values) {
        const auto place = places_by_step_[p][static_cast<size_t>(i)];
        const auto bytes = round_up(block * bytes_of(value(i).number));
        if (std::none_of(free.begin(), free.end(), [&](const Free& f) { return f.place == place; }))
          free.push_back({place, bytes});
      }
    }
    spare_ = memory_;
    memory_ += 3 * round_up(block * 8);
  }
  static int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  /// What one thread works in.
  struct State {
    State(const CpuKernel& of, std::span<void* const> pointers) : kernel(of), group(of.group_), tensors(pointers) {
      // Grown once a thread: new memory would cost more than a small group.
      static thread_local std::vector<char> memory;
      if (memory.size() < static_cast<size_t>(of.memory_) + 64) memory.resize(static_cast<size_t>(of.memory_) + 64);
      base = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
      for (size_t i = 0; i < group.values.size(); ++i) {
        const auto& of_number = group.values[i];
        if (of_number.op != ScalarOp::kNumber) continue;
        for (int64_t k = 0; k < kLanes; ++k) {
          if (of_number.number == Number::kFloat)
            set_at(at(static_cast<int>(i), 0), k, static_cast<float>(of_number.real));
          if (of_number.number == Number::kDouble) set_at(at(static_cast<int>(i), 0), k, of_number.real);
          if (of_number.number == Number::kInt) set_at<int64_t>(at(static_cast<int>(i), 0), k, of_number.whole);
          if (of_number.number == Number::kBool)
            set_at<int32_t>(at(static_cast<int>(i), 0), k, of_number.whole ? -1 : 0);
        }
      }
      if (of.has_columns_) sums.resize(group.values.size());
      for (size_t i = 0; i < group.values.size(); ++i)
        if (group.values[i].op == ScalarOp::kColumnSum) sums[i].assign(static_cast<size_t>(of.columns_), 0);
    }

    void* at(int i, size_t pass_number) {
      if (kernel.shape(i) != Shape::kElement || kernel.fits_) return base + kernel.places_[static_cast<size_t>(i)];
      return base + kernel.places_by_step_[pass_number][static_cast<size_t>(i)];
    }

    /// Some rows through all passes.
    void rows(int64_t row, int64_t count) {
      for (size_t p = 0; p < kernel.steps_.size(); ++p) {
        row_values(p, {row, count, 0, 1});
        begin_reductions(p, count);
        for (int64_t column = 0; column < kernel.columns_; column += kBlock)
          pass(p, {row, count, column, std::min(kBlock, kernel.columns_ - column)}, true);
        end_reductions(p, count);
      }
      for (const int s : kernel.row_stores_) {
        const auto& store = group.stores[static_cast<size_t>(s)];
        const int step = kernel.shape(store.value) == Shape::kRow ? 1 : 0;
        store_block(store, at(store.value, 0), step, {row, count, 0, 1});
      }
    }

    void row_values(size_t p, const Block& block) {
      for (const int i : kernel.steps_[p].row_values) compute(i, p, block, block.rows);
    }

    void pass(size_t p, const Block& block, bool has_rows = false) {
      if (!has_rows) row_values(p, {block.row, block.rows, 0, 1});
      const auto& step = kernel.steps_[p];
      for (const int i : step.values) compute(i, p, block, block.elements());
      for (const int i : step.reductions) reduce(i, p, block);
      for (const int i : step.column_sums) add_columns(i, p, block);
      for (const int s : step.stores) {
        const auto& store = group.stores[static_cast<size_t>(s)];
        const auto operand = argument(store.value, p, block, true, 0);
        store_block(store, operand.data, operand.step, block);
      }
    }

    void begin_reductions(size_t p, int64_t count) {
      for (const int i : kernel.steps_[p].reductions) {
        const auto& of = kernel.value(i);
        parts[i].assign(static_cast<size_t>(count), start(of.op));
        whole_parts[i].assign(static_cast<size_t>(count), whole_start(of.op));
      }
    }
    void end_reductions(size_t p, int64_t count) {
      for (const int i : kernel.steps_[p].reductions) {
        const auto number = kernel.value(i).number;
        void* to = at(i, p);
        for (int64_t r = 0; r < (kernel.shape(i) == Shape::kOne ? kLanes : count); ++r) {
          const auto from = static_cast<size_t>(kernel.shape(i) == Shape::kOne ? 0 : r);
          if (number == Number::kFloat)
            set_at(to, r, static_cast<float>(parts[i][from]));
          else if (number == Number::kDouble)
            set_at(to, r, parts[i][from]);
          else
            set_at<int64_t>(to, r, whole_parts[i][from]);
        }
      }
    }
    static double start(ScalarOp op) {
      constexpr auto most = std::numeric_limits<double>::infinity();
      return op == ScalarOp::kRowMax ? -most : op == ScalarOp::kRowMin ? most : op == ScalarOp::kRowProd ? 1 : 0;
    }
    static int64_t whole_start(ScalarOp op) {
      using Limits = std::numeric_limits<int64_t>;
      return op == ScalarOp::kRowMax   ? Limits::min()
             : op == ScalarOp::kRowMin ? Limits::max()
                                       : op == ScalarOp::kRowProd;
    }
    template <class T>
    static T two(ScalarOp op, T a, T b) {
      if (op == ScalarOp::kRowMax) return a != a || a > b ? a : b;
      if (op == ScalarOp::kRowMin) return a != a || a < b ? a : b;
      return op == ScalarOp::kRowProd ? a * b : a + b;
    }

    void reduce(int i, size_t p, const Block& block) {
      const auto& of = kernel.value(i);
      const auto operand = argument(of.args[0], p, block, true, 0);
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t from = r * block.columns;
        auto& part = parts[i][static_cast<size_t>(r)];
        if (of.number == Number::kFloat && operand.step == 1) {
          part = two(of.op, part,
                     detail::reduce_floats(of.op, static_cast<const float*>(operand.data) + from, block.columns));
          continue;
        }
        for (int64_t c = 0; c < block.columns; ++c) {
          const int64_t place = operand.step ? from + c : 0;
          if (of.number == Number::kFloat)
            part = two<double>(of.op, part, static_cast<const float*>(operand.data)[place]);
          else if (of.number == Number::kDouble)
            part = two(of.op, part, static_cast<const double*>(operand.data)[place]);
          else {
            auto& whole = whole_parts[i][static_cast<size_t>(r)];
            whole = two(of.op, whole, static_cast<const int64_t*>(operand.data)[place]);
          }
        }
      }
    }

    void add_columns(int i, size_t p, const Block& block) {
      const auto& of = kernel.value(i);
      LEVIN_CHECK(of.number != Number::kInt, "[compile] the CPU sums no integers of columns");
      const auto operand = argument(of.args[0], p, block, true, 0);
      auto* to = sums[static_cast<size_t>(i)].data() + block.column;
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t from = r * block.columns;
        if (of.number == Number::kFloat && operand.step == 1) {
          detail::add_floats(to, static_cast<const float*>(operand.data) + from, block.columns);
          continue;
        }
        for (int64_t c = 0; c < block.columns; ++c) {
          const int64_t place = operand.step ? from + c : 0;
          to[c] += of.number == Number::kFloat ? static_cast<const float*>(operand.data)[place]
                                               : static_cast<const double*>(operand.data)[place];
        }
      }
    }

    /// A value in the shape of elements; rows' values are spread into spare memory where there are several.
    detail::Operand argument(int i, size_t p, const Block& block, bool of_elements, int spare) {
      if (i < 0) return {};
      void* data = at(i, p);
      const auto held = kernel.shape(i);
      if (held == Shape::kOne) return {data, 0};
      if (held == Shape::kElement || !of_elements) return {data, 1};
      const auto bytes = bytes_of(kernel.value(i).number);
      char* to = base + kernel.spare_ + spare * ((kernel.memory_ - kernel.spare_) / 3);
      const auto spread = [&](auto zero) {
        using T = decltype(zero);
        const auto* from = static_cast<const T*>(data);
        if (block.rows == 1) {
          std::fill_n(reinterpret_cast<T*>(to), kLanes, from[0]);
          return;
        }
        for (int64_t r = 0; r < block.rows; ++r)
          std::fill_n(reinterpret_cast<T*>(to) + r * block.columns, block.columns, from[r]);
      };
      bytes == 4 ? spread(int32_t{}) : spread(int64_t{});
      return {to, block.rows == 1 ? 0 : 1};
    }

    void compute(int i, size_t p, const Block& block, int64_t n) {
      const auto& of = kernel.value(i);
      const bool of_elements = kernel.shape(i) == Shape::kElement;
      if (kernel.shape(i) == Shape::kOne) n = kLanes;
      void* out = at(i, p);
      if (of.op == ScalarOp::kNumber) return;
      if (of.op == ScalarOp::kLoad) return load(i, p, out, block, of_elements, n);
      if (of.op == ScalarOp::kIndex) return coordinates(of.place, static_cast<int64_t*>(out), block, of_elements, n);
      Instruction in{.op = of.op, .number = of.number, .dtype = of.dtype, .out = out};
      in.operand = kernel.value(of.args[0]).number;
      in.a = argument(of.args[0], p, block, of_elements, 0);
      in.b = argument(of.args[1], p, block, of_elements, 1);
      in.c = argument(of.args[2], p, block, of_elements, 2);
      detail::run_instruction(in, n);
    }

    /// Calls visit(first element of the block, place of it in memory, stride, how many) for runs of neighbours.
    template <class Visit>
    void runs(const Access& access, const Block& block, bool of_elements, const Visit& visit) const {
      const auto split = static_cast<size_t>(group.row_dims);
      const auto place_of = [&](int64_t index, size_t from, size_t to) {
        int64_t place = 0;
        for (size_t d = to; d-- > from;) {
          place += index % group.sizes[d] * access.strides[d];
          index /= group.sizes[d];
        }
        return place;
      };
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t row = access.offset + place_of(block.row + r, 0, split);
        if (!of_elements || group.sizes.size() == split) {
          visit(r, row, int64_t{0}, int64_t{1});
          continue;
        }
        const int64_t inner = group.sizes.back(), stride = access.strides.back();
        for (int64_t c = 0; c < block.columns;) {
          const int64_t column = block.column + c, count = std::min(inner - column % inner, block.columns - c);
          visit(r * block.columns + c, row + place_of(column, split, group.sizes.size()), stride, count);
          c += count;
        }
      }
    }

    void load(int i, size_t p, void* out, const Block& block, bool of_elements, int64_t n) {
      const auto& of = kernel.value(i);
      const auto& access = group.accesses[static_cast<size_t>(of.place)];
      const void* data = tensors[static_cast<size_t>(access.tensor)];
      const auto bytes = bytes_of(of.number);
      if (kernel.shape(i) == Shape::kOne && of.args[0] < 0 && of.args[1] < 0) {
        for (int64_t k = 0; k < kLanes; ++k)
          detail::read_run(static_cast<char*>(out) + k * bytes, data, access.offset, 0, 1, access.dtype);
        return;
      }
      const auto index = argument(of.args[0], p, block, of_elements, 0),
                 guard = argument(of.args[1], p, block, of_elements, 1);
      runs(access, block, of_elements, [&](int64_t first, int64_t place, int64_t stride, int64_t count) {
        char* to = static_cast<char*>(out) + first * bytes;
        if (!index.data && !guard.data) return detail::read_run(to, data, place, stride, count, access.dtype);
        for (int64_t k = 0; k < count; ++k) {
          char* one = to + k * bytes;
          std::memset(one, 0, static_cast<size_t>(bytes));
          const auto at_lane = [&](const detail::Operand& operand) { return operand.step ? first + k : 0; };
          if (guard.data && !static_cast<const int32_t*>(guard.data)[at_lane(guard)]) continue;
          int64_t from = place + k * stride;
          if (index.data) {
            int64_t x = static_cast<const int64_t*>(index.data)[at_lane(index)];
            if (x < 0) x += of.gather_size;
            if (x < 0 || x >= of.gather_size) {
              if (of.number == Number::kFloat) set_at(one, 0, std::numeric_limits<float>::quiet_NaN());
              if (of.number == Number::kDouble) set_at(one, 0, std::numeric_limits<double>::quiet_NaN());
              continue;
            }
            from += x * of.gather_stride;
          }
          detail::read_run(one, data, from, 1, 1, access.dtype);
        }
      });
      if (kernel.shape(i) == Shape::kOne)
        for (int64_t k = 1; k < n; ++k)
          std::memcpy(static_cast<char*>(out) + k * bytes, out, static_cast<size_t>(bytes));
    }

    void coordinates(int dim, int64_t* out, const Block& block, bool of_elements, int64_t n) const {
      const auto split = group.row_dims;
      const auto coordinate = [&](int64_t index, int to) {
        for (int d = to; --d > dim;) index /= group.sizes[static_cast<size_t>(d)];
        return index % group.sizes[static_cast<size_t>(dim)];
      };
      if (!of_elements && n == kLanes && block.rows == 1)
        return void(std::fill_n(out, kLanes, dim < split ? coordinate(block.row, split) : 0));
      int64_t at_element = 0;
      for (int64_t r = 0; r < block.rows; ++r)
        for (int64_t c = 0; c < (of_elements ? block.columns : 1); ++c)
          out[at_element++] = dim < split ? coordinate(block.row + r, split)
                                          : coordinate(block.column + c, static_cast<int>(group.sizes.size()));
    }

    void store_block(const GroupStore& store, const void* data, int step, const Block& block) {
      const auto bytes = bytes_of(number_of(store.access.dtype));
      void* to = tensors[static_cast<size_t>(store.access.tensor)];
      runs(store.access, block, block.columns > 1 || kernel.columns_ > 1 || !kernel.reduces_,
           [&](int64_t first, int64_t place, int64_t stride, int64_t count) {
             if (stride == 0) count = 1;
             detail::write_run(to, place, stride, static_cast<const char*>(data) + (step ? first * bytes : 0), step,
                               count, store.access.dtype);
           });
    }

    const CpuKernel& kernel;
    const Group& group;
    std::span<void* const> tensors;
    char* base = nullptr;
    std::map<int, std::vector<double>> parts;
    std::map<int, std::vector<int64_t>> whole_parts;
    std::vector<std::vector<double>> sums;
  };

  /// Few long rows: threads take parts of them.
  void run_split(std::span<void* const> tensors) {
    for (int64_t row = 0; row < rows_; ++row) {
      std::map<int64_t, std::pair<std::map<int, std::vector<double>>, std::map<int, std::vector<int64_t>>>> parts;
      std::mutex mutex;
      const int64_t blocks = (columns_ + kBlock - 1) / kBlock;
      parallel_for(0, blocks, kGrain / kBlock, [&](int64_t from, int64_t to) {
        State state(*this, tensors);
        state.row_values(0, {row, 1, 0, 1});
        state.begin_reductions(0, 1);
        for (int64_t block = from; block < to; ++block)
          state.pass(0, {row, 1, block * kBlock, std::min(kBlock, columns_ - block * kBlock)}, true);
        const std::lock_guard lock(mutex);
        parts.emplace(from, std::pair{std::move(state.parts), std::move(state.whole_parts)});
      });
      State state(*this, tensors);
      state.row_values(0, {row, 1, 0, 1});
      state.begin_reductions(0, 1);
      for (const auto& [from, part] : parts)
        for (const int i : steps_[0].reductions) {
          const auto op = value(i).op;
          state.parts[i][0] = State::two(op, state.parts[i][0], part.first.at(i)[0]);
          state.whole_parts[i][0] = State::two(op, state.whole_parts[i][0], part.second.at(i)[0]);
        }
      state.end_reductions(0, 1);
      state.row_values(1, {row, 1, 0, 1});
      for (const int s : row_stores_) {
        const auto& store = group_.stores[static_cast<size_t>(s)];
        state.store_block(store, state.at(store.value, 0), shape(store.value) == Shape::kRow ? 1 : 0, {row, 1, 0, 1});
      }
    }
  }

  /// What stands behind sums of columns: a group over one row, whose last tensors are the sums.
  void plan_tail() {
    Group tail;
    tail.sizes.assign(group_.sizes.begin() + group_.row_dims, group_.sizes.end());
    tail.row_dims = static_cast<int>(tail.sizes.size());
    const auto of_columns = [&](Access access) {
      access.strides.erase(access.strides.begin(), access.strides.begin() + group_.row_dims);
      return access;
    };
    std::vector<int> to(group_.values.size(), -1);
    std::vector<bool> wanted(group_.values.size(), false);
    for (const auto& store : group_.stores)
      if (after_[static_cast<size_t>(store.value)]) wanted[static_cast<size_t>(store.value)] = true;
    for (size_t i = group_.values.size(); i-- > 0;)
      if (wanted[i] && group_.values[i].op != ScalarOp::kColumnSum)
        for (const int arg : group_.values[i].args)
          if (arg >= 0) wanted[static_cast<size_t>(arg)] = true;
    std::vector<int64_t> dense(tail.sizes.size(), 1);
    for (size_t d = dense.size(); d-- > 1;) dense[d - 1] = dense[d] * tail.sizes[d];
    const int tensors = group_.tensors();
    for (size_t i = 0; i < group_.values.size(); ++i) {
      if (!wanted[i]) continue;
      auto of = group_.values[i];
      if (of.op == ScalarOp::kColumnSum) {
        const int loaded = tail.load({tensors + static_cast<int>(tail_sums_.size()), at::kDouble, dense, 0});
        tail_sums_.push_back(static_cast<int>(i));
        to[i] = of.number == Number::kDouble ? loaded : tail.cast(loaded, at::kFloat);
        continue;
      }
      for (int& arg : of.args)
        if (arg >= 0) arg = to[static_cast<size_t>(arg)];
      if (of.op == ScalarOp::kLoad) {
        to[i] = tail.load(of_columns(group_.accesses[static_cast<size_t>(of.place)]), of.args[0], of.gather_stride,
                          of.gather_size, of.args[1]);
        continue;
      }
      if (of.op == ScalarOp::kIndex) of.place -= group_.row_dims;
      to[i] = static_cast<int>(tail.values.size());
      tail.values.push_back(of);
    }
    for (const auto& store : group_.stores)
      if (after_[static_cast<size_t>(store.value)])
        tail.store(of_columns(store.access), to[static_cast<size_t>(store.value)]);
    if (!tail.stores.empty()) tail_ = std::make_unique<CpuKernel>(std::move(tail));
  }

  void store_columns(std::span<void* const> tensors, const std::map<int64_t, std::vector<std::vector<double>>>& sums) {
    if (!tail_) return;
    std::vector<std::vector<double>> totals(tail_sums_.size());
    std::vector<void*> pointers(tensors.begin(), tensors.end());
    for (size_t k = 0; k < totals.size(); ++k) {
      totals[k].assign(static_cast<size_t>(columns_), 0);
      for (const auto& [from, part] : sums)
        for (size_t c = 0; c < totals[k].size(); ++c) totals[k][c] += part[static_cast<size_t>(tail_sums_[k])][c];
      pointers.push_back(totals[k].data());
    }
    tail_->run(pointers);
  }

  Group group_;
  int64_t rows_ = 1, columns_ = 1, rows_at_once_ = 1, memory_ = 0, spare_ = 0;
  bool fits_ = true, reduces_ = false, has_columns_ = false;
  int last_ = 0;
  std::vector<Level> levels_;
  std::vector<int> phases_;
  std::vector<bool> after_;
  std::vector<Shape> shapes_;
  std::vector<Step> steps_;
  std::vector<int> row_stores_;
  std::vector<int> tail_sums_;
  std::unique_ptr<CpuKernel> tail_;
  std::vector<int64_t> places_;
  /// Of each pass, for values of elements that every pass computes again; -1: not in this pass.
  std::vector<std::vector<int64_t>> places_by_step_;
};

}  // namespace

std::shared_ptr<GroupKernel> make_cpu_kernel(const Group& group) {
  return std::make_shared<CpuKernel>(group);
}

}  // namespace levin::compile
