#include "levin/compile/backends/kernel_source.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "levin/compile/backends/kernel_text.h"
#include "levin/core/error.h"

namespace levin::compile {
namespace {

using detail::GroupText;
using levin::detail::concat;

constexpr int kMostThreads = 1024;
/// Numbers that a thread keeps in registers.
constexpr int64_t kRegisterNumbers = 72;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Columns become rows: sums of columns are then sums of rows, whose schedules may split them.
Group transposed(const Group& group) {
  Group to = group;
  const auto rotate = [&](std::vector<int64_t>& list) {
    std::rotate(list.begin(), list.begin() + group.row_dims, list.end());
  };
  rotate(to.sizes);
  for (auto& access : to.accesses) rotate(access.strides);
  for (auto& store : to.stores) rotate(store.access.strides);
  const int dims = static_cast<int>(group.sizes.size());
  to.row_dims = dims - group.row_dims;
  for (auto& value : to.values) {
    if (value.op == ScalarOp::kColumnSum) value.op = ScalarOp::kRowSum;
    if (value.op == ScalarOp::kIndex) value.place = (value.place + dims - group.row_dims) % dims;
  }
  return to;
}

/// How one group becomes kernels.
class Writer {
 public:
  Writer(const Group& group, const CudaTarget& target) : group_(group), target_(target) {}

  CudaSource write() {
    const auto has = [&](bool columns) {
      return std::any_of(group_.values.begin(), group_.values.end(), [&](const Scalar& value) {
        return is_reduction(value.op) && (value.op == ScalarOp::kColumnSum) == columns;
      });
    };
    if (has(true) && !has(false)) group_ = transposed(group_);
    column_sums_ = has(true);
    if (has(false) && group_.row_dims == static_cast<int>(dims())) add_column();
    if (!has(false) && !column_sums_)
      pointwise();
    else if (!column_sums_ && along_rows())
      strided_rows();
    else
      rows();
    source_.text = concat(relaxed() ? "#define RELAXED\n" : "", cuda_prelude(), text_);
    return std::move(source_);
  }

 private:
  struct Step {
    /// Reductions whose arguments are there, and stores that are made in this pass over the elements.
    std::vector<int> row_reductions, column_sums, stores;
  };

  const Scalar& value(int i) const { return group_.values[static_cast<size_t>(i)]; }
  size_t dims() const { return group_.sizes.size(); }

  /// Rows of one number each: a dimension for the reductions.
  void add_column() {
    group_.sizes.push_back(1);
    for (auto& access : group_.accesses) access.strides.push_back(0);
    for (auto& store : group_.stores) store.access.strides.push_back(0);
  }

  /// Results of 16 bits do not show what quick functions change.
  bool relaxed() const {
    return std::any_of(group_.stores.begin(), group_.stores.end(), [](const GroupStore& store) {
      return store.access.dtype == at::kBFloat16 || store.access.dtype == at::kHalf;
    });
  }

  int smallest_element() const {
    size_t bytes = 8;
    for (const auto& access : group_.accesses)
      if (access.dtype != at::kBool) bytes = std::min(bytes, c10::elementSize(access.dtype));
    for (const auto& store : group_.stores)
      if (store.access.dtype != at::kBool) bytes = std::min(bytes, c10::elementSize(store.access.dtype));
    return static_cast<int>(bytes);
  }

  /// Neighbours along a dimension that are read at once.
  int vector_of(int dim) const {
    if (dim < 0 || !target_.aligned) return 1;
    const bool any = std::any_of(group_.accesses.begin(), group_.accesses.end(),
                                 [&](const Access& access) { return access.strides[static_cast<size_t>(dim)] == 1; }) ||
                     std::any_of(group_.stores.begin(), group_.stores.end(), [&](const GroupStore& store) {
                       return store.access.strides[static_cast<size_t>(dim)] == 1;
                     });
    int vector = any ? std::clamp(16 / smallest_element(), 2, 8) : 1;
    while (group_.sizes[static_cast<size_t>(dim)] % vector) vector /= 2;
    return vector;
  }

  /// Whether neighbours in memory are neighbours of rows, which reductions keep.
  bool along_rows() const {
    if (group_.row_dims == 0) return false;
    const auto row = static_cast<size_t>(group_.row_dims) - 1;
    int64_t by_row = 0, by_column = 0;
    for (const auto& access : group_.accesses) {
      by_row += access.strides[row] == 1 && group_.sizes[row] > 1;
      by_column += dims() > row + 1 && access.strides.back() == 1;
    }
    return by_row > by_column;
  }

  std::string parameters() const {
    std::string text = "(";
    for (int t = 0; t < group_.tensors(); ++t) text += concat("void* p", t, ", ");
    return text + "char* work)";
  }

  void begin_kernel(const std::string& name, int threads, int64_t blocks, int64_t blocks_y = 1, int threads_y = 1) {
    text_ += concat("extern \"C\" __global__ void __launch_bounds__(", threads * threads_y, ") ", name, parameters(),
                    " {\n");
    source_.launches.push_back({name, blocks, blocks_y, threads, threads_y});
  }

  std::string store_element(const GroupText& text, int s, std::string& before, std::string& after) const {
    const auto& store = group_.stores[static_cast<size_t>(s)];
    const auto dtype = detail::dtype_text(store.access.dtype);
    if (text.is_vector(store.access)) {
      before += concat("Pack<", dtype, ", ", source_.vector, "> w", s, ";\n");
      after += concat("w", s, ".store(p", store.access.tensor, ", ", text.place(store.access), ");\n");
      return concat("w", s, ".set(v, ", text.name(store.value), ");\n");
    }
    auto place = text.place(store.access);
    if (vector_dim_ >= 0 && store.access.strides[static_cast<size_t>(vector_dim_)] != 0)
      place += concat(" + v * ", store.access.strides[static_cast<size_t>(vector_dim_)]);
    return concat("write<", dtype, ">(p", store.access.tensor, ", ", place, ", ", text.name(store.value), ");\n");
  }

  bool is_element_store(const GroupText& text, const GroupStore& store) const {
    if (text.levels()[static_cast<size_t>(store.value)] == kElement) return true;
    // A row's value that is stored for every column, or a number for all.
    bool rows = false, columns = false;
    for (size_t d = 0; d < dims(); ++d)
      (d < static_cast<size_t>(group_.row_dims) ? rows : columns) |=
          store.access.strides[d] != 0 && group_.sizes[d] > 1;
    return columns || (!rows && group_.row_dims == static_cast<int>(dims()));
  }

  // ---- without reductions
  void pointwise() {
    group_.row_dims = static_cast<int>(dims());
    vector_dim_ = static_cast<int>(dims()) - 1;
    source_.vector = vector_of(vector_dim_);
    const GroupText text(group_, source_.vector, vector_dim_, target_.aligned);
    const int64_t count = group_.elements() / source_.vector;
    constexpr int kThreads = 256;
    const int loads = static_cast<int>(group_.accesses.size());
    const int unroll = count < int64_t{target_.processors} * 2048 * 4 ? 1 : loads <= 1 ? 4 : loads <= 3 ? 2 : 1;
    begin_kernel("group", kThreads, ceil_div(count, int64_t{kThreads} * unroll));
    std::vector<int> sinks;
    std::string before, each, after, loaded;
    for (size_t s = 0; s < group_.stores.size(); ++s) {
      sinks.push_back(group_.stores[s].value);
      each += store_element(text, static_cast<int>(s), before, after);
    }
    const auto values = text.needed(sinks, [](int) { return false; });
    for (const int i : values) {
      if (!text.is_cacheable(i) && !is_flat_load(text, i)) continue;
      const auto& access = group_.accesses[static_cast<size_t>(value(i).place)];
      text_ += concat("Pack<", detail::dtype_text(access.dtype), ", ", source_.vector, "> r", i, "[", unroll, "];\n");
      loaded += text.cached_load(i, "k");
    }
    const std::string index_type = group_.elements() >= int64_t{1} << 31 ? "u64" : "u32";
    const auto head =
        concat("#pragma unroll\nfor (int k = 0; k < ", unroll, "; ++k) {\nconst ", index_type, " e = (", index_type,
               ")blockIdx.x * ", kThreads * unroll, "u + k * ", kThreads, "u + threadIdx.x;\nif (e < ", count, "u) {\n",
               text.coordinates(0, static_cast<int>(dims()), "e"));
    if (!loaded.empty()) text_ += head + loaded + "} }\n";
    text_ += head + text.block(values, "k", each, before, after) + "} }\n}\n";
  }
  bool is_flat_load(const GroupText& text, int i) const { return text.is_cacheable(i); }

  // ---- rows whose columns lie side by side
  std::vector<Step> steps(const GroupText& text) const {
    const auto& phases = text.phases();
    int last = 0;
    for (size_t i = 0; i < group_.values.size(); ++i)
      if (is_reduction(group_.values[i].op) && group_.values[i].op != ScalarOp::kColumnSum)
        last = std::max(last, phases[i]);
    std::vector<Step> all(static_cast<size_t>(last) + 1);
    const auto after = group_.after_column_sums();
    for (size_t i = 0; i < group_.values.size(); ++i) {
      if (!is_reduction(group_.values[i].op)) continue;
      auto& step = all[static_cast<size_t>(phases[i]) - 1];
      (group_.values[i].op == ScalarOp::kColumnSum ? step.column_sums : step.row_reductions)
          .push_back(static_cast<int>(i));
    }
    for (size_t s = 0; s < group_.stores.size(); ++s) {
      const auto& store = group_.stores[s];
      if (after[static_cast<size_t>(store.value)] || !is_element_store(text, store)) continue;
      // What is written over is read before: in the last pass.
      all[group_.is_over(store) ? static_cast<size_t>(last)
                                : static_cast<size_t>(phases[static_cast<size_t>(store.value)])]
          .stores.push_back(static_cast<int>(s));
    }
    return all;
  }

  struct RowPlan {
    int threads = 0;      // of a row
    int64_t vectors = 0;  // of a thread; 0: a loop
    int rows = 1;         // of a block
  };

  RowPlan plan_rows(const GroupText& text) const {
    const int64_t count = group_.columns() / source_.vector;
    int64_t kept = 1;
    for (size_t i = 0; i < group_.values.size(); ++i) {
      kept += text.is_cacheable(static_cast<int>(i));
      kept += group_.values[i].op == ScalarOp::kColumnSum;
    }
    std::vector<int> choices;
    for (int t = 1; t <= 32; t *= 2) choices.push_back(t);
    for (int t = 64; t <= kMostThreads; t += t < 256 ? 32 : t < 512 ? 64 : 128) choices.push_back(t);
    RowPlan best;
    double least = std::numeric_limits<double>::infinity();
    for (const int t : choices) {
      const int64_t k = ceil_div(count, t);
      const int64_t numbers = k * source_.vector * kept;
      if (numbers > kRegisterNumbers && k > 1) continue;
      const double waste = static_cast<double>(k * t) / static_cast<double>(count) + (t > 32 ? 0.1 : 0) + t * 1e-4;
      if (waste < least) least = waste, best = {t, k, std::max(1, 128 / t)};
      if (t >= count) break;
    }
    if (best.threads == 0) best = {count >= 2048 ? kMostThreads : 512, 0, 1};
    if (best.threads > 32) best.rows = 1;
    return best;
  }

  void rows() {
    vector_dim_ = static_cast<int>(dims()) - 1;
    source_.vector = vector_of(vector_dim_);
    const GroupText text(group_, source_.vector, vector_dim_, target_.aligned);
    auto plan = plan_rows(text);
    const auto passes = steps(text);
    const int64_t count = group_.columns() / source_.vector, row_count = group_.rows();
    const bool may_split = !column_sums_ && passes.size() == 2 && passes[1].stores.empty();
    int64_t splits = 1;
    if (may_split && row_count < target_.processors && count > 2048) {
      plan = {512, 0, 1};
      splits = std::clamp<int64_t>(target_.processors * 4 / row_count, 1, ceil_div(count, 512));
    }
    const int block = plan.threads * plan.rows;
    int64_t blocks = ceil_div(row_count, plan.rows);
    if (column_sums_) blocks = std::min(blocks, int64_t{target_.processors} * std::max(1, 1024 / block));
    const int64_t slots = column_sums_ ? blocks * plan.rows : splits;

    begin_kernel("group", block, blocks, splits);
    const int warps = std::max(1, plan.threads / 32);
    size_t most = 0;
    for (const auto& pass : passes) most = std::max(most, pass.row_reductions.size());
    const bool shared = plan.threads > 32;
    if (shared && most) text_ += concat("__shared__ double shared[2][", passes.size(), "][", most, "][", warps, "];\n");
    text_ += concat("const int t = threadIdx.x % ", plan.threads, "u;\nint turn = 0;\n");
    const auto k_name = plan.vectors ? "k" : "";
    std::vector<int> cached;
    if (plan.vectors)
      for (size_t i = 0; i < group_.values.size(); ++i)
        if (text.is_cacheable(static_cast<int>(i))) cached.push_back(static_cast<int>(i));
    for (const auto& pass : passes)
      for (const int i : pass.column_sums)
        text_ += concat(detail::number_text(value(i).number), " s", i, "[",
                        std::max<int64_t>(1, plan.vectors) * source_.vector, "] = {};\n");
    LEVIN_CHECK(!column_sums_ || plan.vectors, "[compile] a row of ", group_.columns(),
                " with sums of columns is too long");
    text_ += concat("for (int base = blockIdx.x * ", plan.rows, "; base < ", row_count, "; base += gridDim.x * ",
                    plan.rows, ") {\nconst int row = base + threadIdx.x / ", plan.threads, "u;\n");
    const bool partly = row_count % plan.rows != 0;
    text_ += partly ? concat("const bool live = row < ", row_count, ";\nconst u32 line = live ? row : ", row_count - 1,
                             ";\n")
                    : std::string("const bool live = true;\nconst u32 line = row;\n");
    text_ += text.coordinates(0, group_.row_dims, "line");

    // Values of rows are declared as soon as they are known; those of the other passes wait.
    std::vector<bool> declared(group_.values.size(), false);
    const auto after = group_.after_column_sums();
    const auto declare_rows = [&](int phase) {
      std::vector<int> ready;
      for (size_t i = 0; i < group_.values.size(); ++i) {
        const bool row_value =
            !(text.levels()[i] & kColumnLevel) && !after[i] && group_.values[i].op != ScalarOp::kColumnSum;
        if (row_value && text.phases()[i] == phase && !declared[i] && !is_reduction(group_.values[i].op))
          ready.push_back(static_cast<int>(i));
        if (row_value && text.phases()[i] == phase) declared[i] = true;
      }
      text_ += text.block(ready, {}, {});
    };
    const auto loop = [&](const std::string& body) {
      if (plan.vectors) {
        const bool ragged = plan.vectors * plan.threads != count;
        return concat("#pragma unroll\nfor (int k = 0; k < ", plan.vectors, "; ++k) {\nconst u32 e = k * ",
                      plan.threads, "u + t;\n", ragged ? concat("if (e < ", count, "u) ") : "", "{\n",
                      text.coordinates(group_.row_dims, static_cast<int>(dims()), "e"), body, "} }\n");
      }
      const auto part = ceil_div(count, splits);
      const auto end = splits == 1 ? concat(count, "u") : concat("min(", count, "u, (blockIdx.y + 1) * ", part, "u)");
      const auto begin = splits == 1 ? std::string("t") : concat("blockIdx.y * ", part, "u + t");
      return concat("#pragma unroll 2\nfor (u32 e = ", begin, "; e < ", end, "; e += ", plan.threads, ") {\n",
                    text.coordinates(group_.row_dims, static_cast<int>(dims()), "e"), body, "}\n");
    };
    if (!cached.empty()) {
      std::string loads;
      for (const int i : cached) {
        const auto& access = group_.accesses[static_cast<size_t>(value(i).place)];
        text_ += concat("Pack<", detail::dtype_text(access.dtype), ", ", source_.vector, "> r", i, "[", plan.vectors,
                        "];\n");
        loads += text.cached_load(i, "k");
      }
      text_ += loop(loads);
    }
    for (size_t p = 0; p < (splits > 1 ? 1 : passes.size()); ++p) {  // what stands behind split rows is in `finish`
      const auto& pass = passes[p];
      declare_rows(static_cast<int>(p));
      std::vector<int> sinks;
      std::string before, each, last;
      for (const int i : pass.row_reductions) {
        text_ += concat(detail::number_text(value(i).number), " a", i, " = ",
                        detail::start_text(value(i).op, value(i).number), ";\n");
        each += concat("a", i, " = ", detail::reducer_text(value(i).op), "::two(a", i, ", ",
                       text.name(value(i).args[0]), ");\n");
        sinks.push_back(value(i).args[0]);
      }
      for (const int i : pass.column_sums) {
        each += concat("if (live) s", i, "[k * ", source_.vector, " + v] += ", text.name(value(i).args[0]), ";\n");
        sinks.push_back(value(i).args[0]);
      }
      std::string stores;
      for (const int s : pass.stores) {
        stores += store_element(text, s, before, last);
        sinks.push_back(group_.stores[static_cast<size_t>(s)].value);
      }
      if (partly && !stores.empty())
        stores = concat("if (live) {\n", stores, "}\n"),
        last = last.empty() ? last : concat("if (live) {\n", last, "}\n");
      if (!sinks.empty()) {
        const auto values = text.needed(sinks, [&](int i) { return declared[static_cast<size_t>(i)]; });
        text_ += loop(text.block(values, k_name, each + stores, before, last));
      }
      if (pass.row_reductions.empty()) continue;
      combine_rows(pass, p, plan, warps, splits);
      for (const int i : pass.row_reductions) declared[static_cast<size_t>(i)] = true;
    }
    if (splits == 1) {
      declare_rows(static_cast<int>(passes.size()) - 1);
      std::string stores;
      for (size_t s = 0; s < group_.stores.size(); ++s) {
        const auto& store = group_.stores[s];
        if (after[static_cast<size_t>(store.value)] || is_element_store(text, store)) continue;
        stores += concat("write<", detail::dtype_text(store.access.dtype), ">(p", store.access.tensor, ", ",
                         text.place(store.access), ", ", text.name(store.value), ");\n");
      }
      if (!stores.empty()) text_ += concat("if (t == 0 && live) {\n", stores, "}\n");
    }
    text_ += "turn ^= 1;\n}\n";
    if (column_sums_) {
      for (const auto& pass : passes)
        for (const int i : pass.column_sums) {
          const auto pack = value(i).number == Number::kFloat    ? "F32"
                            : value(i).number == Number::kDouble ? "F64"
                                                                 : "I64";
          text_ +=
              loop(concat("Pack<", pack, ", ", source_.vector, "> w;\n#pragma unroll\nfor (int v = 0; v < ",
                          source_.vector, "; ++v) w.set(v, s", i, "[k * ", source_.vector, " + v]);\nw.store(work + ",
                          workspace(i, slots), "ll, (i64)(blockIdx.x * ", plan.rows, " + threadIdx.x / ", plan.threads,
                          "u) * ", group_.columns(), " + e * ", source_.vector, ");\n"));
        }
    }
    text_ += "}\n";
    if (column_sums_)
      finish(false, slots, passes);
    else if (splits > 1)
      finish(true, slots, passes);
  }

  /// Where the parts of a reduction lie: [slot][row or column].
  int64_t workspace(int i, int64_t slots) {
    const auto found =
        std::find_if(places_.begin(), places_.end(), [&](const auto& place) { return place.first == i; });
    if (found != places_.end()) return found->second;
    const int64_t kept = value(i).op == ScalarOp::kColumnSum ? group_.columns() : group_.rows();
    const int64_t at = source_.workspace_bytes;
    source_.workspace_bytes += ceil_div(slots * kept * (value(i).number == Number::kFloat ? 4 : 8), 256) * 256;
    places_.emplace_back(i, at);
    return at;
  }

  void combine_rows(const Step& pass, size_t p, const RowPlan& plan, int warps, int64_t splits) {
    for (size_t r = 0; r < pass.row_reductions.size(); ++r) {
      const int i = pass.row_reductions[r];
      const auto number = detail::number_text(value(i).number), reducer = detail::reducer_text(value(i).op);
      const int width = std::min(plan.threads, 32);
      if (width > 1) text_ += concat("a", i, " = lanes<", reducer, ", ", width, ">(a", i, ");\n");
      if (plan.threads > 32)
        text_ += concat("if (t % 32 == 0) *(", number, "*)&shared[turn][", p, "][", r, "][t / 32] = a", i, ";\n");
    }
    if (plan.threads > 32) text_ += "__syncthreads();\n";
    for (size_t r = 0; r < pass.row_reductions.size(); ++r) {
      const int i = pass.row_reductions[r];
      const auto number = detail::number_text(value(i).number), reducer = detail::reducer_text(value(i).op);
      if (plan.threads > 32)
        text_ += concat("a", i, " = *(", number, "*)&shared[turn][", p, "][", r,
                        "][0];\n#pragma unroll\nfor (int w = 1; w < ", warps, "; ++w) a", i, " = ", reducer, "::two(a",
                        i, ", *(", number, "*)&shared[turn][", p, "][", r, "][w]);\n");
      if (splits == 1)
        text_ += concat("const ", number, " v", i, " = a", i, ";\n");
      else
        text_ += concat("if (t == 0) ((", number, "*)(work + ", workspace(i, splits), "ll))[(i64)blockIdx.y * ",
                        group_.rows(), " + row] = a", i, ";\n");
    }
  }

  /// Sums the parts of all blocks, and what stands behind them.
  void finish(bool of_rows, int64_t slots, const std::vector<Step>& passes) {
    const int64_t kept = of_rows ? group_.rows() : group_.columns();
    // Few results: many threads each.
    const int wide = kept >= 32 ? 32 : 1, high = wide == 32 ? 16 : 512;
    begin_kernel(concat("finish"), wide, ceil_div(kept, wide), 1, high);
    // One number a thread, whatever lay side by side before.
    const GroupText text(group_, 1, -1, target_.aligned);
    text_ += concat("const int x = threadIdx.x, y = threadIdx.y;\nconst u32 line = blockIdx.x * ", wide, "u + x;\n");
    std::vector<int> sums;
    for (const auto& pass : passes)
      for (const int i : of_rows ? pass.row_reductions : pass.column_sums) sums.push_back(i);
    text_ += concat("__shared__ double shared[", sums.size(), "][", high, "][", wide, "];\n");
    for (size_t r = 0; r < sums.size(); ++r) {
      const int i = sums[r];
      const auto number = detail::number_text(value(i).number), reducer = detail::reducer_text(value(i).op);
      text_ += concat(number, " a", i, " = ", detail::start_text(value(i).op, value(i).number), ";\nif (line < ", kept,
                      "u)\n#pragma unroll 4\nfor (int s = y; s < ", slots, "; s += ", high, ") a", i, " = ", reducer,
                      "::two(a", i, ", ((const ", number, "*)(work + ", workspace(i, slots), "ll))[(i64)s * ", kept,
                      " + line]);\n*(", number, "*)&shared[", r, "][y][x] = a", i, ";\n");
    }
    text_ += "__syncthreads();\n";
    for (int half = high / 2; half > 0; half /= 2) {
      text_ += concat("if (y < ", half, ") {\n");
      for (size_t r = 0; r < sums.size(); ++r) {
        const auto number = detail::number_text(value(sums[r]).number);
        const auto at = [&](const char* y) { return concat("*(", number, "*)&shared[", r, "][", y, "][x]"); };
        text_ += concat(at("y"), " = ", detail::reducer_text(value(sums[r]).op), "::two(", at("y"), ", ",
                        at(concat("y + ", half).c_str()), ");\n");
      }
      text_ += "}\n__syncthreads();\n";
    }
    text_ += concat("if (y != 0 || line >= ", kept, "u) return;\n");
    std::vector<bool> declared(group_.values.size(), false);
    for (size_t r = 0; r < sums.size(); ++r) {
      text_ += concat("const ", detail::number_text(value(sums[r]).number), " v", sums[r], " = *(",
                      detail::number_text(value(sums[r]).number), "*)&shared[", r, "][0][x];\n");
      declared[static_cast<size_t>(sums[r])] = true;
    }
    const int from = of_rows ? 0 : group_.row_dims, to = of_rows ? group_.row_dims : static_cast<int>(dims());
    text_ += text.coordinates(from, to, "line");
    const auto after = group_.after_column_sums();
    std::string stores;
    std::vector<int> sinks;
    for (const auto& store : group_.stores) {
      const bool here = of_rows ? !is_element_store(text, store) : after[static_cast<size_t>(store.value)];
      if (!here) continue;
      sinks.push_back(store.value);
      stores += concat("write<", detail::dtype_text(store.access.dtype), ">(p", store.access.tensor, ", ",
                       text.place(store.access), ", ", text.name(store.value), ");\n");
    }
    const auto values = text.needed(sinks, [&](int i) { return declared[static_cast<size_t>(i)]; });
    text_ += text.block(values, {}, stores) + "}\n";
  }

  // ---- rows that lie side by side: a thread has `vector` rows, and steps through their columns
  void strided_rows() {
    vector_dim_ = group_.row_dims - 1;
    source_.vector = vector_of(vector_dim_);
    const GroupText text(group_, source_.vector, vector_dim_, target_.aligned);
    const auto passes = steps(text);
    const int64_t count = group_.rows() / source_.vector, columns = group_.columns();
    const int wide = count >= 32 ? 32 : count >= 16 ? 16 : 8;
    const int high = static_cast<int>(std::clamp<int64_t>(columns, 1, 256 / wide));
    const int64_t blocks = ceil_div(count, wide);
    const bool may_split = passes.size() == 2 && passes[1].stores.empty();
    int64_t splits = 1;
    if (may_split && blocks < target_.processors * 4)
      splits = std::clamp<int64_t>(target_.processors * 8 / blocks, 1, std::max<int64_t>(1, columns / (high * 8)));
    begin_kernel("group", wide, blocks, splits, high);
    size_t most = 0;
    for (const auto& pass : passes) most = std::max(most, pass.row_reductions.size());
    text_ += concat("__shared__ double shared[", most, "][", high, "][", wide * source_.vector, "];\n");
    text_ += concat("const int x = threadIdx.x, y = threadIdx.y;\nconst u32 row = blockIdx.x * ", wide,
                    "u + x;\nconst bool live = row < ", count, ";\nconst u32 line = live ? row : ", count - 1, ";\n",
                    text.coordinates(0, group_.row_dims, "line"));
    std::vector<bool> declared(group_.values.size(), false);
    const auto declare_rows = [&](int phase) {
      std::vector<int> ready;
      std::string arrays;
      for (size_t i = 0; i < group_.values.size(); ++i) {
        const auto& of = group_.values[i];
        if ((text.levels()[i] & kColumnLevel) || text.phases()[i] != phase) continue;
        if (declared[i] || is_reduction(of.op)) continue;
        declared[i] = true;
        ready.push_back(static_cast<int>(i));
        if (text.is_array(static_cast<int>(i)) && of.op != ScalarOp::kNumber && of.op != ScalarOp::kIndex)
          arrays += concat(detail::number_text(of.number), " v", i, "[", source_.vector, "];\n");
      }
      text_ += arrays + text.block(ready, {}, {});
    };
    const auto part = ceil_div(columns, splits);
    const auto end = splits == 1 ? concat(columns, "u") : concat("min(", columns, "u, (blockIdx.y + 1) * ", part, "u)");
    const auto begin = splits == 1 ? std::string("y") : concat("blockIdx.y * ", part, "u + y");
    for (size_t p = 0; p < (splits > 1 ? 1 : passes.size()); ++p) {  // what stands behind split rows is in `finish`
      const auto& pass = passes[p];
      declare_rows(static_cast<int>(p));
      std::vector<int> sinks;
      std::string before, each, last;
      for (const int i : pass.row_reductions) {
        text_ += concat(detail::number_text(value(i).number), " a", i, "[", source_.vector,
                        "];\n#pragma unroll\nfor (int v = 0; v < ", source_.vector, "; ++v) a", i,
                        "[v] = ", detail::start_text(value(i).op, value(i).number), ";\n");
        each += concat("a", i, "[v] = ", detail::reducer_text(value(i).op), "::two(a", i, "[v], ",
                       text.name(value(i).args[0]), ");\n");
        sinks.push_back(value(i).args[0]);
      }
      std::string stores;
      for (const int s : pass.stores) {
        stores += store_element(text, s, before, last);
        sinks.push_back(group_.stores[static_cast<size_t>(s)].value);
      }
      if (!stores.empty())
        stores = concat("if (live) {\n", stores, "}\n"),
        last = last.empty() ? last : concat("if (live) {\n", last, "}\n");
      if (!sinks.empty()) {
        const auto values = text.needed(sinks, [&](int i) { return declared[static_cast<size_t>(i)]; });
        text_ += concat("#pragma unroll 4\nfor (u32 e = ", begin, "; e < ", end, "; e += ", high, ") {\n",
                        text.coordinates(group_.row_dims, static_cast<int>(dims()), "e"),
                        text.block(values, {}, each + stores, before, last), "}\n");
      }
      if (pass.row_reductions.empty()) continue;
      if (p > 0) text_ += "__syncthreads();\n";
      for (size_t r = 0; r < pass.row_reductions.size(); ++r) {
        const int i = pass.row_reductions[r];
        text_ +=
            concat("#pragma unroll\nfor (int v = 0; v < ", source_.vector, "; ++v) *(",
                   detail::number_text(value(i).number), "*)&shared[", r, "][y][v * ", wide, " + x] = a", i, "[v];\n");
      }
      text_ += "__syncthreads();\n";
      for (size_t r = 0; r < pass.row_reductions.size(); ++r) {
        const int i = pass.row_reductions[r];
        const auto number = detail::number_text(value(i).number);
        text_ +=
            concat(number, " v", i, "[", source_.vector, "];\n#pragma unroll\nfor (int v = 0; v < ", source_.vector,
                   "; ++v) {\nv", i, "[v] = *(", number, "*)&shared[", r, "][0][v * ", wide,
                   " + x];\nfor (int o = 1; o < ", high, "; ++o) v", i, "[v] = ", detail::reducer_text(value(i).op),
                   "::two(v", i, "[v], *(", number, "*)&shared[", r, "][o][v * ", wide, " + x]);\n}\n");
        if (splits > 1)
          text_ += concat("if (y == 0 && live)\n#pragma unroll\nfor (int v = 0; v < ", source_.vector, "; ++v) ((",
                          number, "*)(work + ", workspace(i, splits), "ll))[(i64)blockIdx.y * ", group_.rows(),
                          " + row * ", source_.vector, " + v] = v", i, "[v];\n");
        declared[static_cast<size_t>(i)] = true;
      }
    }
    if (splits == 1) {
      declare_rows(static_cast<int>(passes.size()) - 1);
      std::string before, each, last;
      for (size_t s = 0; s < group_.stores.size(); ++s)
        if (!is_element_store(text, group_.stores[s])) each += store_element(text, static_cast<int>(s), before, last);
      if (!each.empty())
        text_ += concat("if (y == 0 && live) {\n", before, "#pragma unroll\nfor (int v = 0; v < ", source_.vector,
                        "; ++v) {\n", each, "}\n", last, "}\n");
    }
    text_ += "}\n";
    if (splits > 1) finish(true, splits, passes);
  }

  Group group_;
  CudaTarget target_;
  CudaSource source_;
  std::string text_;
  bool column_sums_ = false;
  int vector_dim_ = -1;
  std::vector<std::pair<int, int64_t>> places_;
};

}  // namespace

CudaSource cuda_source(const Group& group, const CudaTarget& target) {
  group.check();
  LEVIN_CHECK(group.elements() > 0, "[compile] a group without elements");
  return Writer(group, target).write();
}

}  // namespace levin::compile
