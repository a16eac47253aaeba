#include "levin/program/commands/tensor_ranks.h"

#include <algorithm>
#include <cstdio>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/devices/accelerator.h"
#include "levin/distributed/launcher/launcher.h"
#include "levin/environments/environment.h"

namespace levin::cli {
namespace {

constexpr int64_t kMostRanks = 1024;

}  // namespace

void TensorRanksFlag::describe(Flags& flags) {
  flags.flag("tensor-parallel", size_,
             "processes that have the model together, each a part of every layer; 0: as many as `levin run`, torchrun "
             "or SLURM has started, else one",
             "N");
}

void TensorRanksFlag::look() {
  LEVIN_CHECK(size_ >= 0 && size_ <= kMostRanks, "[", command_, "] --tensor-parallel ", size_, " must be 0 to ",
              kMostRanks);
  const auto environment = detect_environment();
  if (!environment->creates_processes_externally()) {
    starts_ = size_ > 1;
    return;
  }
  const auto place = environment->placement({0, 0});
  rank_ = place.global_rank;
  world_ = place.world_size;
  set_log_rank(rank_);
  LEVIN_CHECK(size_ == 0 || size_ == world_, "[", command_, "] --tensor-parallel ", size_, " needs ", size_,
              " ranks, and ", world_, world_ == 1 ? " was" : " were", " started (", environment->name(), ")");
}

void TensorRanksFlag::check(const models::LanguageModel& sizes) const {
  const auto ranks = starts_ ? size_ : world_;
  if (ranks == 1) return;
  const auto& body = sizes.body();
  HeadShare::of({body.num_heads, body.key_heads(), body.head_width()}, ranks, 0, "blocks.0.attention");
  LEVIN_CHECK(!sizes.quantization, "[", command_, "] a quantized model is not split over ranks; take no quantization, ",
              "or no --tensor-parallel");
}

int TensorRanksFlag::start(const Args& args, std::chrono::milliseconds stop_grace) const {
  std::fflush(nullptr);
  return launch_self(args.values(), static_cast<int>(size_), stop_grace);
}

TensorRanks TensorRanksFlag::join(c10::Device& device) const {
  if (world_ == 1) return nullptr;
  const auto place = detect_environment()->placement({0, 0});
  auto& kind = accelerator_of(device);
  if (device.is_cuda() && !device.has_index())
    device = c10::Device(device.type(), static_cast<c10::DeviceIndex>(place.local_rank % kind.device_count()));
  kind.set_device(device);
  return join_group(place, device);
}

std::vector<std::vector<int64_t>> prompts_of_first_rank(const TensorRanks& ranks,
                                                        std::vector<std::vector<int64_t>> prompts) {
  if (!ranks) return prompts;
  std::vector<int64_t> flat;
  for (const auto& prompt : prompts) {
    flat.push_back(static_cast<int64_t>(prompt.size()));
    flat.insert(flat.end(), prompt.begin(), prompt.end());
  }
  auto size = at::tensor(std::vector<int64_t>{static_cast<int64_t>(flat.size())}, at::kLong);
  ranks->broadcast(size);
  auto all = at::zeros({size.item<int64_t>()}, at::kLong);
  auto* at = all.mutable_data_ptr<int64_t>();
  if (ranks->rank() == 0) std::copy(flat.begin(), flat.end(), at);
  ranks->broadcast(all);
  if (ranks->rank() == 0) return prompts;
  for (int64_t i = 0; i < all.numel(); i += 1 + at[i]) prompts.emplace_back(at + i + 1, at + i + 1 + at[i]);
  return prompts;
}

void among_ranks(const TensorRanks& ranks, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (ranks) report_failure(*ranks, error.what());
    throw;
  }
}

}  // namespace levin::cli
