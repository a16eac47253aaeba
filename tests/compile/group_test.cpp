#include "levin/compile/group.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include "levin/compile/backends/backend.h"
#include "levin/compile/backends/cubin_cache.h"
#include "levin/compile/backends/kernel_source.h"
#include "levin/compile/backends/nvrtc.h"
#include "levin/testing/temporary_folder.h"

namespace levin::compile {
namespace {

using Op = ScalarOp;
constexpr auto kF = Number::kFloat;

/// The tensors of a group, with random contents; written ones are of a pattern that no result has.
class Tensors {
 public:
  Tensors(const Group& group, uint64_t seed) : random_(seed) {
    const auto n = static_cast<size_t>(group.tensors());
    sizes_.assign(n, 0), dtypes_.assign(n, at::kFloat), buffers_.resize(n);
    std::vector<bool> is_read(n, false);
    const auto look = [&](const Access& access, int64_t extra) {
      int64_t last = access.offset + extra;
      for (size_t d = 0; d < group.sizes.size(); ++d) last += (group.sizes[d] - 1) * access.strides[d];
      auto& size = sizes_[static_cast<size_t>(access.tensor)];
      size = std::max(size, last + 1);
      dtypes_[static_cast<size_t>(access.tensor)] = access.dtype;
    };
    for (const auto& value : group.values) {
      if (value.op != Op::kLoad) continue;
      const auto& access = group.accesses[static_cast<size_t>(value.place)];
      look(access, value.args[0] >= 0 ? value.gather_stride * (value.gather_size - 1) : 0);
      is_read[static_cast<size_t>(access.tensor)] = true;
    }
    for (const auto& store : group.stores) look(store.access, 0);
    for (size_t t = 0; t < n; ++t) {
      buffers_[t].assign(static_cast<size_t>(sizes_[t]) * 8 + 64, static_cast<char>(0x55));
      if (is_read[t])
        for (int64_t i = 0; i < sizes_[t]; ++i) fill(t, i);
    }
  }

  std::vector<void*> pointers() {
    std::vector<void*> all;
    for (auto& buffer : buffers_) all.push_back(buffer.data());
    return all;
  }

  /// The largest difference, in units of what the dtype can show.
  double distance(const Tensors& other) const {
    double worst = 0;
    for (size_t t = 0; t < buffers_.size(); ++t) {
      double scale = 0;
      for (int64_t i = 0; i < sizes_[t]; ++i)
        if (std::isfinite(at(t, i))) scale = std::max(scale, std::abs(at(t, i)));
      const double unit = dtypes_[t] == at::kBFloat16 ? 1e-2
                          : dtypes_[t] == at::kHalf   ? 2e-3
                          : dtypes_[t] == at::kFloat  ? 3e-5
                                                      : 1e-9;
      for (int64_t i = 0; i < sizes_[t]; ++i) {
        const double a = at(t, i), b = other.at(t, i);
        if (a == b || (a != a && b != b)) continue;
        const double way = std::abs(a - b) / (unit * (std::abs(a) + 0.1 * scale + 1e-6));
        worst = way > worst || way != way ? (way != way ? std::numeric_limits<double>::infinity() : way) : worst;
      }
    }
    return worst;
  }

 private:
  void fill(size_t t, int64_t i) {
    std::normal_distribution<float> normal;
    float x = normal(random_);
    const auto kind = random_() % 400;
    if (kind == 0) x = std::numeric_limits<float>::quiet_NaN();
    if (kind == 1) x = std::numeric_limits<float>::infinity();
    const auto put = [&](auto y) { std::memcpy(buffers_[t].data() + static_cast<size_t>(i) * sizeof y, &y, sizeof y); };
    switch (dtypes_[t]) {
      case at::kFloat:
        return put(x);
      case at::kDouble:
        return put(static_cast<double>(x));
      case at::kHalf:
        return put(c10::Half(x));
      case at::kBFloat16:
        return put(c10::BFloat16(x));
      case at::kBool:
        return put(static_cast<uint8_t>(x > 0));
      case at::kInt:
        return put(static_cast<int32_t>(random_() % 7) - 3);
      default:
        return put(static_cast<int64_t>(random_() % 7) - 3);
    }
  }
  double at(size_t t, int64_t i) const {
    const auto get = [&](auto y) {
      std::memcpy(&y, buffers_[t].data() + static_cast<size_t>(i) * sizeof y, sizeof y);
      return static_cast<double>(y);
    };
    switch (dtypes_[t]) {
      case at::kFloat:
        return get(0.F);
      case at::kDouble:
        return get(0.0);
      case at::kHalf:
        return get(c10::Half());
      case at::kBFloat16:
        return get(c10::BFloat16());
      case at::kBool:
        return get(uint8_t{});
      case at::kInt:
        return get(int32_t{});
      default:
        return get(int64_t{});
    }
  }

  std::mt19937_64 random_;
  std::vector<std::vector<char>> buffers_;
  std::vector<int64_t> sizes_;
  std::vector<at::ScalarType> dtypes_;
};

Access access(int tensor, at::ScalarType dtype, std::vector<int64_t> strides, int64_t offset = 0) {
  return {tensor, dtype, std::move(strides), offset};
}

Group softmax(at::ScalarType dtype, int64_t rows, int64_t columns, bool strided = false) {
  Group g;
  g.sizes = {rows, columns}, g.row_dims = 1;
  const std::vector<int64_t> strides = strided ? std::vector<int64_t>{1, rows} : std::vector<int64_t>{columns, 1};
  const int x = g.load(access(0, dtype, strides)), most = g.op(Op::kRowMax, kF, x);
  const int e = g.op(Op::kExp, kF, g.op(Op::kSub, kF, x, most)), sum = g.op(Op::kRowSum, kF, e);
  g.store(access(1, dtype, strides), g.op(Op::kDiv, kF, e, sum));
  g.store(access(2, at::kFloat, {1, 0}), g.op(Op::kAdd, kF, most, g.op(Op::kLog, kF, sum)));
  simplify(g);
  return g;
}

/// Backward of a layer norm: two sums of rows, two of columns.
Group norm_backward(at::ScalarType dtype, int64_t rows, int64_t columns) {
  Group g;
  g.sizes = {rows, columns}, g.row_dims = 1;
  const int x = g.load(access(0, dtype, {columns, 1})), grad = g.load(access(1, dtype, {columns, 1}));
  const int weight = g.load(access(2, at::kFloat, {0, 1})), mean = g.load(access(3, at::kFloat, {1, 0}));
  const auto mul = [&](int a, int b) { return g.op(Op::kMul, kF, a, b); };
  const int normal = g.op(Op::kSub, kF, x, mean), scaled = mul(grad, weight),
            part = g.real(1.0 / static_cast<double>(columns));
  const int level = mul(g.op(Op::kRowSum, kF, scaled), part),
            along = mul(g.op(Op::kRowSum, kF, mul(scaled, normal)), part);
  g.store(access(4, dtype, {columns, 1}), g.op(Op::kSub, kF, g.op(Op::kSub, kF, scaled, level), mul(normal, along)));
  g.store(access(5, at::kFloat, {0, 1}), g.op(Op::kColumnSum, kF, mul(grad, normal)));
  g.store(access(6, at::kBFloat16, {0, 1}), mul(g.op(Op::kColumnSum, kF, grad), g.real(2)));
  simplify(g);
  return g;
}

Group full_sum(int64_t n) {
  Group g;
  g.sizes = {n}, g.row_dims = 0;
  const int x = g.load(access(0, at::kFloat, {1})), y = g.load(access(1, at::kBFloat16, {1})),
            way = g.op(Op::kSub, kF, x, y);
  const int sum = g.op(Op::kRowSum, kF, g.op(Op::kMul, kF, way, way));
  g.store(access(2, at::kFloat, {0}), g.op(Op::kMul, kF, sum, g.real(1.0 / static_cast<double>(n))));
  g.store(access(3, at::kBFloat16, {1}), way);
  simplify(g);
  return g;
}

Group column_sums(int64_t rows, int64_t columns) {
  Group g;
  g.sizes = {rows, columns}, g.row_dims = 1;
  const int x = g.load(access(0, at::kBFloat16, {columns, 1})), y = g.load(access(1, at::kBFloat16, {columns, 1}));
  const int product = g.op(Op::kMul, kF, x, y);
  g.store(access(2, at::kBFloat16, {columns, 1}), product);
  g.store(access(3, at::kFloat, {0, 1}), g.op(Op::kColumnSum, kF, product));
  simplify(g);
  return g;
}

/// Two halves change places, and a row of a table is added.
Group rotation(int64_t rows, int64_t columns) {
  Group g;
  g.sizes = {rows, columns}, g.row_dims = 2;
  const int column = g.index(1), low = g.op(Op::kLt, Number::kBool, column, g.whole(columns / 2));
  const int high = g.op(Op::kGe, Number::kBool, column, g.whole(columns / 2));
  const int first = g.load(access(0, at::kBFloat16, {columns, 1}, columns / 2), -1, 0, 0, low);
  const int second = g.load(access(0, at::kBFloat16, {columns, 1}, -columns / 2), -1, 0, 0, high);
  const int turned = g.op(Op::kWhere, kF, low, g.op(Op::kNeg, kF, first), second);
  const int row = g.load(access(1, at::kLong, {1, 0})),
            of_table = g.load(access(2, at::kFloat, {0, 1}), row, columns, 7);
  g.store(access(3, at::kBFloat16, {columns, 1}), g.op(Op::kAdd, kF, turned, of_table));
  simplify(g);
  return g;
}

/// Any operations on any tensors.
Group random_group(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](auto... of) {
    const std::array all{of...};
    return all[random() % all.size()];
  };
  Group g;
  const int dims = 1 + static_cast<int>(random() % 3);
  for (int d = 0; d < dims; ++d) g.sizes.push_back(pick(1, 2, 3, 5, 8));
  g.sizes.back() = pick(1, 5, 8, 12, 32, 100, 128, 1500);
  g.row_dims = static_cast<int>(random() % static_cast<uint64_t>(dims + 1));
  std::vector<int64_t> dense(g.sizes.size(), 1);
  for (size_t d = dense.size(); d-- > 1;) dense[d - 1] = dense[d] * g.sizes[d];
  int tensor = 0;
  std::vector<int> floats;
  for (uint64_t n = 1 + random() % 4; n > 0; --n) {
    auto strides = dense;
    for (auto& stride : strides)
      if (random() % 4 == 0) stride = 0;
    if (random() % 5 == 0)
      for (auto& stride : strides) stride *= 2;
    const auto dtype = pick(at::kFloat, at::kFloat, at::kBFloat16, at::kHalf, at::kInt, at::kBool, at::kLong);
    int value = g.load(access(tensor++, dtype, strides, pick(0, 0, 8, 3)));
    if (number_of(dtype) != kF) value = g.cast(value, at::kFloat);
    floats.push_back(value);
  }
  const auto any = [&] { return floats[random() % floats.size()]; };
  for (uint64_t n = 1 + random() % 9; n > 0; --n) {
    switch (random() % 8) {
      case 0:
        floats.push_back(
            g.op(Op::kWhere, kF, g.op(pick(Op::kLt, Op::kGe, Op::kNe), Number::kBool, any(), any()), any(), any()));
        break;
      case 1:
        floats.push_back(
            g.op(pick(Op::kExp, Op::kSqrt, Op::kAbs, Op::kNeg, Op::kRecip), kF, g.op(Op::kTanh, kF, any())));
        break;
      case 2:
        floats.push_back(g.op(pick(Op::kTanh, Op::kSigmoid, Op::kAbs, Op::kSign, Op::kErf), kF, any()));
        break;
      case 3:
        floats.push_back(g.cast(any(), pick(at::kBFloat16, at::kHalf)));
        break;
      case 4:
        floats.push_back(g.op(pick(Op::kMax, Op::kMin), kF, any(), g.real(0.25)));
        break;
      default:
        floats.push_back(g.op(pick(Op::kAdd, Op::kSub, Op::kMul), kF, any(), any()));
    }
    const auto levels = g.levels();
    if (random() % 4 == 0 && g.row_dims < dims)
      floats.push_back(g.op(pick(Op::kRowSum, Op::kRowMax, Op::kRowMin), kF, g.op(Op::kTanh, kF, any())));
  }
  const auto levels = g.levels();
  const auto store_of = [&](int value) {
    auto strides = dense;
    const auto dtype = pick(at::kFloat, at::kBFloat16);
    const bool reduced =
        is_reduction(g.values[static_cast<size_t>(value)].op) || !(levels[static_cast<size_t>(value)] & kColumnLevel);
    if (reduced && g.row_dims < dims) {
      for (size_t d = static_cast<size_t>(g.row_dims); d < strides.size(); ++d) strides[d] = 0;
      int64_t step = 1;
      for (auto d = static_cast<size_t>(g.row_dims); d-- > 0;) strides[d] = step, step *= g.sizes[d];
    }
    g.store(access(tensor++, dtype, strides), value);
  };
  store_of(floats.back());
  if (random() % 2) store_of(any());
  simplify(g);
  return g;
}

std::vector<std::pair<std::string, Group>> known_groups() {
  return {{"softmax", softmax(at::kBFloat16, 64, 768)},
          {"softmax of few columns", softmax(at::kFloat, 33, 12)},
          {"softmax of odd columns", softmax(at::kFloat, 9, 35)},
          {"softmax of one column", softmax(at::kFloat, 7, 1)},
          {"long softmax", softmax(at::kBFloat16, 2, 12304)},
          {"softmax along strides", softmax(at::kBFloat16, 256, 50, true)},
          {"norm backward", norm_backward(at::kBFloat16, 60, 768)},
          {"norm backward in half", norm_backward(at::kHalf, 30, 1024)},
          {"norm backward of odd columns", norm_backward(at::kFloat, 50, 99)},
          {"sum of all", full_sum(1 << 16)},
          {"sum of few", full_sum(1000)},
          {"columns", column_sums(300, 256)},
          {"odd columns", column_sums(100, 7)},
          {"rotation", rotation(20, 64)}};
}

void expect_as_reference(const std::string& name, const Group& group, uint64_t seed) {
  Tensors reference(group, seed), own(group, seed);
  interpret(group, reference.pointers());
  make_cpu_kernel(group)->run(own.pointers());
  EXPECT_LE(reference.distance(own), 1) << name << " (seed " << seed << ")\n" << group.print();
}

TEST(CompiledGroup, CpuLoopsEqualTheReference) {
  for (const auto& [name, group] : known_groups()) expect_as_reference(name, group, 1);
}

TEST(CompiledGroup, RandomGroupsEqualTheReferenceOnTheCpu) {
  const char* all = std::getenv("LEVIN_RANDOM_GROUPS");
  const uint64_t count = all ? std::strtoull(all, nullptr, 10) : 250;
  for (uint64_t seed = 0; seed < count && !HasFailure(); ++seed)
    expect_as_reference("random", random_group(seed), seed);
}

TEST(CompiledGroup, EqualGroupsHaveEqualSources) {
  const auto first = cuda_source(softmax(at::kBFloat16, 64, 768)),
             second = cuda_source(softmax(at::kBFloat16, 64, 768));
  EXPECT_EQ(first.text, second.text);
  EXPECT_NE(first.text, cuda_source(softmax(at::kBFloat16, 64, 776)).text);
}

TEST(CompiledGroup, RefusesWhatDoesNotHoldTogether) {
  auto group = softmax(at::kFloat, 4, 8);
  group.stores[0].value = 99;
  EXPECT_ANY_THROW(group.check());
  group = softmax(at::kFloat, 4, 8);
  group.accesses[0].strides.push_back(1);
  EXPECT_ANY_THROW(group.check());
}

TEST(CompiledGroup, SimplifyMergesDimensionsAndDropsWhatNobodyStores) {
  Group g;
  g.sizes = {4, 1, 8, 16}, g.row_dims = 4;
  const int x = g.load(access(0, at::kBFloat16, {128, 0, 16, 1}));
  g.op(Op::kExp, kF, x);
  const int rounded = g.cast(g.op(Op::kAdd, kF, x, x), at::kBFloat16, true);
  g.store(access(1, at::kBFloat16, {128, 0, 16, 1}), g.op(Op::kMul, kF, rounded, x));
  simplify(g);
  EXPECT_EQ(g.sizes, (std::vector<int64_t>{512}));
  EXPECT_EQ(g.values.size(), 3U);  // load, add, mul: the rounding between is left out
}

/// Lines of assembly with a word.
int count_of(const std::string& text, std::string_view word) {
  int n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

TEST(CompiledGroup, SourcesCompileForTheGpu) {
  std::string why;
  const auto* nvrtc = Nvrtc::find(why);
  if (!nvrtc) GTEST_SKIP() << why;
  const char* all = std::getenv("LEVIN_RANDOM_GROUPS");
  auto groups = known_groups();
  for (uint64_t seed = 0; seed < (all ? 100U : 3U); ++seed) groups.emplace_back("random", random_group(seed));
  for (size_t i = 0; i < groups.size(); i += all ? 1 : 3) {
    const auto& [name, group] = groups[i];
    for (const bool aligned : {true, false}) {
      if (!aligned && !all) continue;
      std::string cubin;
      ASSERT_NO_THROW(cubin = nvrtc->cubin(cuda_source(group, {.aligned = aligned}).text, "sm_90a")) << name << "\n"
                                                                                                     << group.print();
      EXPECT_GT(cubin.size(), 1000U) << name;
    }
  }
}

TEST(CompiledGroup, ReadsAndWritesSixteenBytesAtOnce) {
  std::string why;
  const auto* nvrtc = Nvrtc::find(why);
  if (!nvrtc) GTEST_SKIP() << why;
  const auto source = cuda_source(softmax(at::kBFloat16, 64, 768));
  EXPECT_EQ(source.vector, 8);
  const auto ptx = nvrtc->ptx(source.text, "compute_90");
  EXPECT_EQ(count_of(ptx, "ld.global.v4"), 3);  // a warp has 768 numbers in three vectors of 8 a lane
  EXPECT_EQ(count_of(ptx, "ld.global"), 3);
  EXPECT_EQ(count_of(ptx, "st.global.v4"), 3);
  EXPECT_EQ(count_of(ptx, "st.global"), 4);  // and the row's logarithm
}

TEST(CompiledGroup, CubinsAreKeptAndBounded) {
  const levin::testing::TemporaryFolder folder;
  int made = 0;
  const CubinCache cache(folder.path() / "kernels", 5000);
  const auto get = [&](const std::string& text) {
    return cache.get(text, [&] {
      ++made;
      return text + std::string(1500, 'x');
    });
  };
  EXPECT_EQ(get("a"), get("a"));
  EXPECT_EQ(made, 1);
  for (const char* text : {"b", "c", "d", "e", "f"}) get(text);
  EXPECT_EQ(made, 6);
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "kernels"))
    bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_LE(bytes, 5000);
  get("a");
  EXPECT_EQ(made, 7);
}

}  // namespace
}  // namespace levin::compile
