// The CUDA kernels of batches against their twins on the CPU: the same numbers, bit by bit.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "levin/data/transforms/transforms.h"
#include "levin/devices/accelerator.h"
#include "levin/kernels/images/image_batch.h"
#include "levin/testing/gpu.h"

namespace levin::transforms {
namespace {

class TransformsGpu : public levin::testing::GpuTest {
 protected:
  // The step on both, from the same images and the same numbers.
  void expect_twins(const BatchTransform& step, const Batch& batch) {
    Batch here, there;
    for (const auto& [name, tensor] : batch) {
      here.set(name, tensor.clone());
      there.set(name, tensor.clone().to(at::kCUDA));
    }
    Random random(4, 1, 7), same = random;
    step(here, random);
    step(there, same);
    for (const auto& [name, tensor] : std::as_const(here)) {
      const Tensor& other = std::as_const(there)[name];
      ASSERT_TRUE(other.is_cuda());
      EXPECT_EQ(other.scalar_type(), tensor.scalar_type());
      EXPECT_EQ(other.strides(), tensor.strides());
      EXPECT_TRUE(other.cpu().equal(tensor)) << name;
    }
    EXPECT_EQ(random.bits(), same.bits());
  }
};

Tensor some_images(int64_t batch, int64_t channels, int64_t height, int64_t width, bool channels_last) {
  return at::randint(256, {batch, channels, height, width}, at::kByte)
      .contiguous(channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

TEST_F(TransformsGpu, NormalizeHasTheNumbersOfTheCpu) {
  for (const bool in_last : {false, true})
    for (const bool out_last : {false, true})
      for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
        for (const auto& [height, width] : {std::pair(32, 32), std::pair(17, 23), std::pair(64, 50), std::pair(1, 1)})
          for (const double flip : {0.0, 0.5})
            expect_twins(BatchNormalize{.dtype = dtype, .channels_last = out_last, .flip_p = flip},
                         {{"image", some_images(9, 3, height, width, in_last)}});
}

TEST_F(TransformsGpu, OtherNumbersOfChannelsToo) {
  for (const int64_t channels : {1, 2, 4})
    for (const bool last : {false, true})
      expect_twins(BatchNormalize{.mean = {0.5}, .std = {0.25}, .channels_last = last, .flip_p = 0.5},
                   {{"image", some_images(5, channels, 12, 16, last)}});
}

TEST_F(TransformsGpu, CropWithABorderHasTheNumbersOfTheCpu) {
  for (const bool in_last : {false, true})
    for (const bool out_last : {false, true})
      for (const Size crop : {Size(32), Size(30, 29), Size(40, 36)})
        expect_twins(BatchNormalize{.dtype = at::kBFloat16,
                                    .channels_last = out_last,
                                    .flip_p = 0.5,
                                    .crop = crop,
                                    .padding = 4,
                                    .fill = 128},
                     {{"image", some_images(33, 3, 32, 32, in_last)}});
}

TEST_F(TransformsGpu, ErasingHasTheNumbersOfTheCpu) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
      expect_twins(BatchRandomErasing{.value = {0.25, 0.5, -1}},
                   {{"image", at::rand({40, 3, 20, 26}).to(dtype).contiguous(format)}});
}

TEST_F(TransformsGpu, MixturesAreNearThoseOfTheCpu) {
  for (const BatchTransform& step :
       {BatchTransform(MixUp{.num_classes = 5}), BatchTransform(CutMix{.num_classes = 5})}) {
    Batch here{{"image", at::rand({6, 3, 10, 12})}, {"label", at::tensor({0, 4, 2, 2, 1, 3}, at::kLong)}}, there;
    for (const auto& [name, tensor] : std::as_const(here)) there.set(name, tensor.to(at::kCUDA));
    Random random(4, 1, 7), same = random;
    step(here, random);
    step(there, same);
    EXPECT_TRUE(at::allclose(there["image"].cpu(), here["image"], 1e-6, 1e-6));
    EXPECT_TRUE(at::allclose(there["label"].cpu(), here["label"], 1e-6, 1e-6));
  }
}

TEST_F(TransformsGpu, NobodyWaitsForTheDevice) {
  Batch batch{{"image", some_images(64, 3, 32, 32, true).to(at::kCUDA)}, {"label", at::arange(64).to(at::kCUDA)}};
  const BatchTransform all = compose_batch({BatchNormalize{.flip_p = 0.5, .crop = 32, .padding = 4},
                                            BatchRandomErasing{}, MixUp{.num_classes = 64}, CutMix{}});
  Random random(4, 1, 7);
  all(batch, random);  // the first call loads kernels
  batch.set("image", some_images(64, 3, 32, 32, true).to(at::kCUDA));
  batch.set("label", at::arange(64).to(at::kCUDA));
  torch::cuda::synchronize();
  // torch warns at every call of its own that waits.
  struct Counter : c10::WarningHandler {
    void process(const c10::Warning& warning) override { lines.push_back(warning.msg()); }
    std::vector<std::string> lines;
  } counter;
  const auto& cuda = levin::detail::cuda_accelerator();
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&counter);
    cuda.set_sync_warnings(true);
    all(batch, random);
    EXPECT_TRUE(counter.lines.empty()) << counter.lines.front();
    batch["label"].sum().item();  // this one does
    cuda.set_sync_warnings(false);
  }
  EXPECT_FALSE(counter.lines.empty());
}

}  // namespace
}  // namespace levin::transforms
