// Meta tensors through every module and functional of torch::nn, forward and backward: layouts, dtypes and memory are
// those of the CPU. And the tables against LibTorch: what it has no shape function for, and what its headers declare.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/devices/memory_counter.h"
#include "levin/memory/kernels.h"
#include "levin/memory/meter.h"
#include "levin/memory/promotion.h"
#include "levin/memory/shapes/shape_call.h"
#include "levin/testing/error_of.h"
#include "tests/memory/torch_nn_rows.h"

namespace levin::testing {
namespace {

/// What a forward and a backward took, and what they made.
struct Taken {
  int64_t kept = 0, forward_peak = 0, backward_peak = 0;
  int64_t peak() const { return std::max(forward_peak, backward_peak); }
  std::string made;
};

std::string layout_of(const Tensor& tensor) {
  if (!tensor.defined()) return "none";
  return fmt::format("{} [{}] [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","),
                     fmt::join(tensor.strides(), ","));
}

/// `live` gives the bytes that are there, and begins a new peak.
template <class Live, class Peak>
Taken take(const NnRow& row, c10::Device device, const Live& live, const Peak& peak_since_start) {
  Taken taken;
  auto inputs = make_inputs(row, device, 7);
  NnNet net(row);
  if (device.is_meta())
    for (const auto& tensors : {net->parameters(), net->buffers()})
      for (const auto& tensor : tensors)
        tensor.unsafeGetTensorImpl()->shallow_copy_from(at::empty_like(tensor, at::kMeta).getIntrusivePtr());
  net->train();
  const auto before = live();
  auto out = net->forward(inputs);
  taken.forward_peak = peak_since_start() - before;
  taken.kept = live() - before;
  taken.made = layout_of(out);
  loss_of(out).backward();
  taken.backward_peak = peak_since_start() - before;
  for (const auto& param : net->parameters()) taken.made += "; " + layout_of(param.grad());
  return taken;
}

Taken on_cpu(const NnRow& row) {
  MemoryCounter counter;
  torch::manual_seed(1);
  return take(
      row, at::kCPU,
      [&] {
        counter.reset_peak();
        return counter.allocated();
      },
      [&] { return counter.peak(); });
}

Taken on_meta(const NnRow& row) {
  detail::MetaMeter meter(detail::Rounding::kNone);
  const detail::MetaPromotion promotion;
  size_t from = 0;
  int64_t base = 0;
  return take(
      row, at::kMeta,
      [&] {
        from = meter.events().size();
        return base = meter.live();
      },
      [&] {
        int64_t now = base, peak = base;
        for (size_t i = from; i < meter.events().size(); ++i) peak = std::max(peak, now += meter.events()[i].bytes);
        return peak;
      });
}

bool near(const NnRow& row, int64_t predicted, int64_t measured) {
  constexpr double kScalars = 512;
  const auto far = std::abs(static_cast<double>(predicted - measured));
  return far <= row.within * static_cast<double>(measured) + kScalars;
}

TEST(Shapes, OfEveryModuleAndFunctionalAreThoseOfTheCpu) {
  at::set_num_threads(1);
  const char* only = std::getenv("LEVIN_NN_ROW");
  const bool show = std::getenv("LEVIN_SHOW_MEMORY") != nullptr;
  const detail::MetaKernels kernels(at::kCPU);
  for (const auto& row : nn_rows()) {
    if (!row.refused.empty() || (only && row.name.find(only) == std::string::npos)) continue;
    SCOPED_TRACE(row.name);
    try {
      const auto real = on_cpu(row), predicted = on_meta(row);
      EXPECT_EQ(predicted.made, real.made);
      EXPECT_TRUE(near(row, predicted.kept, real.kept))
          << "kept: predicted " << predicted.kept << ", measured " << real.kept;
      EXPECT_TRUE(near(row, predicted.peak(), real.peak()))
          << "peak: predicted " << predicted.peak() << ", measured " << real.peak() << ", in forward "
          << predicted.forward_peak << " and " << real.forward_peak;
      if (show)
        std::cout << fmt::format("{:40} kept {:8} {:8}  forward {:8} {:8}  peak {:8} {:8}\n", row.name, predicted.kept,
                                 real.kept, predicted.forward_peak, real.forward_peak, predicted.peak(), real.peak());
    } catch (const c10::Error& error) {
      ADD_FAILURE() << error.what_without_backtrace();
    }
  }
}

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> subjects_of(const std::vector<NnRow>& rows) {
  std::set<std::string> all;
  for (const auto& row : rows) all.insert(row.subject());
  return all;
}

/// Names that `pattern` finds in the headers below `folder`.
std::set<std::string> declared(const fs::path& folder, const std::regex& pattern) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".h") continue;
    const auto text = text_of(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) names.insert((*it)[1]);
  }
  return names;
}

TEST(Shapes, EveryModuleOfLibTorchIsInARow) {
  const fs::path nn = fs::path(LEVIN_TORCH_NN);
  ASSERT_TRUE(fs::exists(nn / "modules.h")) << nn;
  auto modules = declared(nn / "modules", std::regex(R"(\nTORCH_MODULE\((\w+)\))"));
  EXPECT_GE(modules.size(), 120U);
  for (const auto& name : subjects_of(module_rows())) modules.erase(name);
  for (const auto& name : subjects_of(recurrent_rows())) modules.erase(name);
  EXPECT_THAT(modules, ::testing::IsEmpty());
}

TEST(Shapes, EveryFunctionalOfLibTorchIsInARow) {
  auto functionals = declared(fs::path(LEVIN_TORCH_NN) / "functional",
                              std::regex(R"(\ninline (?:Tensor|std::tuple<Tensor, Tensor>) ([a-z]\w*)\()"));
  EXPECT_GE(functionals.size(), 90U);
  for (const auto& name : subjects_of(functional_rows())) functionals.erase(name);
  EXPECT_THAT(functionals, ::testing::IsEmpty());
}

/// Operators of these families are not reached by dense tensors of floating-point numbers on one device.
bool is_of_another_kind(const std::string& op) {
  static const std::regex others(
      "(_?sparse|_nested|.*nested|quantiz|_quantiz|.*quant|.*int4pack|.*int8pack|_to_sparse|.*_sparse|_test|_foobar|"
      "mkldnn|"
      ".*mkldnn|_jagged|_padded_dense|.*_to_mkldnn|_validate|_spdiags|to_mkldnn|_coalesce|.*csr|_histogramdd|is_set_to|"
      "_empty_.*quantized|.*fake_quant|from_file|sspaddmm|_make_dep_token|_functional_assert|_fused_moving|.*scaled_mm|"
      "_int_mm|_native_multi_head|_transformer_|_transform_bias|_make_per).*");
  return std::regex_match(op, others);
}

/// Operators that the CPU has and meta tensors have not, by the dispatcher itself. Each is in a table, or in this list.
TEST(Shapes, OfOperatorsThatLibTorchHasNoneForAreInATable) {
  const detail::MetaKernels kernels(at::kCPU);
  std::set<std::string> missing;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = name.name.starts_with("aten::") ? dispatcher.findOp(name) : std::nullopt;
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    bool known = false;
    for (const auto key :
         {c10::DispatchKey::Meta, c10::DispatchKey::CompositeImplicitAutograd,
          c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeExplicitAutogradNonFunctional})
      known = known || op->hasKernelForDispatchKey(key);
    if (!known && !is_of_another_kind(name.name.substr(6))) missing.insert(name.name.substr(6));
  }
  // Convolutions run as convolution_overrideable; statistics of batch norm and solvers are called by nobody above.
  const std::set<std::string> left{"_slow_conv2d_backward", "_slow_conv2d_forward", "slow_conv3d_forward",
                                   "slow_conv_dilated2d",   "slow_conv_dilated3d",  "slow_conv_transpose3d",
                                   "native_batch_norm"};  // writes results that are given (out)
  std::vector<std::string> open;
  std::ranges::set_difference(missing, left, std::back_inserter(open));
  EXPECT_THAT(open, ::testing::IsEmpty());
}

}  // namespace
}  // namespace levin::testing
