#include <string>
#include <string_view>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <torch/nn/modules/rnn.h>

namespace levin {
namespace {

// It grows vectors of tensors inside LibTorch.
TEST(TensorVector, RecurrentLayersAreMadeOnEveryCpu) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 6).num_layers(3).bidirectional(true));
  EXPECT_EQ(lstm->all_weights().size(), 24u);
  EXPECT_EQ(std::get<0>(lstm(torch::ones({3, 1, 4}))).size(2), 12);
  torch::nn::GRU gru(torch::nn::GRUOptions(4, 6).num_layers(2));
  EXPECT_EQ(std::get<0>(gru(torch::ones({3, 1, 4}))).size(2), 6);
}

#if defined(__aarch64__) && defined(__GLIBCXX__)
std::string path_of_levin() {
  std::string path;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        if (std::string_view(info->dlpi_name).find("liblevin.so") != std::string_view::npos)
          *static_cast<std::string*>(found) = info->dlpi_name;
        return 0;
      },
      &path);
  return path;
}

// The library has it for programs that do not.
TEST(TensorVector, TheFunctionThatLibTorchHasInSveIsLevins) {
  auto* levin = dlopen(path_of_levin().c_str(), RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(levin, nullptr) << dlerror();
  auto* function = dlsym(levin,
                         "_ZNSt6vectorIN2at6TensorESaIS1_EE17_M_realloc_insertIJRS1_EEEvN9__gnu_cxx17__normal_"
                         "iteratorIPS1_S3_EEDpOT_");
  ASSERT_NE(function, nullptr) << dlerror();
  Dl_info info;
  ASSERT_NE(dladdr(function, &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("liblevin"), std::string::npos) << info.dli_fname;
  dlclose(levin);
}
#endif

}  // namespace
}  // namespace levin
