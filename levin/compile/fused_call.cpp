#include "levin/compile/fused_call.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "levin/compile/backends/backend.h"

namespace levin::compile {

FusedCall::FusedCall(Group group, c10::Device device) : group_(std::move(group)), device_(device) {}
FusedCall::~FusedCall() = default;

std::string FusedCall::name() const {
  constexpr size_t kMostNames = 8;
  std::string name;
  for (size_t i = 0; i < std::min(kMostNames, group_.made_of.size()); ++i) name += (i ? "+" : "") + group_.made_of[i];
  if (group_.made_of.size() > kMostNames) name += "+" + std::to_string(group_.made_of.size() - kMostNames) + " more";
  return name;
}

void FusedCall::run(std::span<const Tensor> reads, std::span<const Tensor> writes) {
  prepare();
  std::vector<void*> pointers;
  pointers.reserve(reads.size() + writes.size());
  for (const auto& tensor : reads) pointers.push_back(const_cast<void*>(tensor.const_data_ptr()));
  for (const auto& tensor : writes) pointers.push_back(tensor.mutable_data_ptr());
  kernel_->run(pointers);
}

void FusedCall::prepare() {
  if (!kernel_) kernel_ = make_kernel(group_, device_);
}

void prepare(std::span<FusedCall* const> calls) {
  // One of each: the others share its kernel.
  std::map<std::string, FusedCall*> first;
  for (auto* call : calls) first.emplace(call->device().str() + call->group().print(), call);
  std::vector<FusedCall*> open;
  for (const auto& [text, call] : first)
    if (call->device().is_cuda()) open.push_back(call);
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failed;
  const auto work = [&] {
    for (size_t i = next++; i < open.size(); i = next++) {
      try {
        open[i]->prepare();
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed = std::current_exception();
      }
    }
  };
  {
    const size_t most = std::min<size_t>(open.size(), std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::jthread> threads;
    for (size_t t = 1; t < most; ++t) threads.emplace_back(work);
    work();
  }
  if (failed) std::rethrow_exception(failed);
  for (auto* call : calls) call->prepare();
}

std::string FusedCall::text() const {
  return group_.print();
}

}  // namespace levin::compile
