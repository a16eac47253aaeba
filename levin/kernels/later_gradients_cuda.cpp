#include <deque>
#include <map>
#include <mutex>

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "levin/kernels/later_gradients.h"
#include "levin/kernels/later_gradients_detail.h"

namespace levin::kernels::detail {
namespace {

thread_local BesideStream* beside_here = nullptr;

/// Streams of no pool: one of torch's could be that which captures. A capture takes one for itself.
class SecondStreams {
 public:
  c10::cuda::CUDAStream take(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    auto& free = free_[device];
    if (free.empty()) {
      const c10::cuda::CUDAGuard guard(device);
      // A new stream is no part of the graph that this thread captures.
      const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
      cudaStream_t made = nullptr;
      C10_CUDA_CHECK(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));  // for the life of the process
      free.push_back(c10::cuda::getStreamFromExternal(made, device));
    }
    const auto taken = free.back();
    free.pop_back();
    return taken;
  }
  void give_back(const c10::cuda::CUDAStream& stream) {
    const std::lock_guard lock(mutex_);
    free_[stream.device_index()].push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, std::vector<c10::cuda::CUDAStream>> free_;
};

SecondStreams& second_streams() {
  static auto& streams = *new SecondStreams();
  return streams;
}

class CudaQueue : public LaterQueue {
 public:
  CudaQueue(c10::DeviceIndex device, size_t most)
      : most_(most), main_(c10::cuda::getCurrentCUDAStream(device)), second_(second_streams().take(device)) {}
  ~CudaQueue() override { second_streams().give_back(second_); }

  bool takes(const Tensor& weight) const override {
    return weight.device() == main_.device() && c10::cuda::getCurrentCUDAStream(main_.device_index()) == main_;
  }

  void run(std::vector<Tensor> reads, const std::function<void()>& compute) override {
    while (outstanding_.size() >= most_) wait_for_first();
    outstanding_.emplace_back(*this).reads = std::move(reads);
    auto& work = outstanding_.back();
    const auto close = [&] {
      beside_here = nullptr;
      if (work.begun)
        work.done.record(second_);
      else
        outstanding_.pop_back();
    };
    beside_here = &work;
    try {
      compute();
    } catch (...) {
      close();
      throw;
    }
    close();
  }

  void wait() override {
    while (!outstanding_.empty()) wait_for_first();
  }

 private:
  struct Work : BesideStream {
    CudaQueue& queue;
    bool begun = false;
    at::cuda::CUDAEvent done;

    explicit Work(CudaQueue& owner) : queue(owner) {}
    CUstream_st* begin() override {
      at::cuda::CUDAEvent ready;
      ready.record(queue.main_);
      ready.block(queue.second_);
      begun = true;
      return queue.second_.stream();
    }
  };

  /// What it has read was allocated for the first stream, and can be used again there from here on.
  void wait_for_first() {
    outstanding_.front().done.block(main_);
    outstanding_.pop_front();
  }

  size_t most_;
  c10::cuda::CUDAStream main_, second_;
  std::deque<Work> outstanding_;
};

}  // namespace

BesideStream* beside_stream() {
  return beside_here;
}

std::shared_ptr<LaterQueue> make_later_queue(c10::Device device, int64_t products) {
  if (!device.is_cuda() || products == 0) return nullptr;
  const c10::cuda::CUDAGuard guard(device);
  if (c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::Active) return nullptr;
  return std::make_shared<CudaQueue>(device.index(), static_cast<size_t>(products));
}

}  // namespace levin::kernels::detail
