// Messages between two ranks of a group.
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "levin/core/error.h"
#include "levin/distributed/checks.h"
#include "levin/distributed/group.h"

namespace levin {
namespace {

/// Two buffers of different sizes that meet on a Gloo connection end the process. A tag that knows the size keeps them
/// apart: the one that nobody takes then runs into its timeout.
int tag_of(const Message& message) {
  const auto bytes = static_cast<uint64_t>(message.tensor.nbytes());
  const auto hash = (bytes * 0x9e3779b97f4a7c15ull) >> 53;  // 11 bits
  return (message.tag << 11) | static_cast<int>(hash);
}

void check(std::string_view operation, const Message& message, int rank, int size) {
  LEVIN_CHECK(message.peer >= 0 && message.peer < size && message.peer != rank, "[", operation, "] rank ", rank,
              " of a group of ", size, " cannot exchange a message with rank ", message.peer);
  LEVIN_CHECK(message.tag >= 0 && message.tag < (1 << 20), "[", operation, "] tag ", message.tag,
              " is not one of 0 to ", (1 << 20) - 1);
  detail::check_dense(std::string(operation).c_str(), message.tensor);
  LEVIN_CHECK(!message.receives || message.tensor.is_contiguous(), "[", operation,
              "] what is received must be contiguous");
}

}  // namespace

class ProcessCollective::Sending final : public Transfer {
 public:
  Sending(ProcessCollective& group, std::string operation, std::vector<Message> messages)
      : group_(group), operation_(std::move(operation)), messages_(std::move(messages)) {
    std::vector<size_t> over_nccl, over_gloo;
    for (size_t i = 0; i < messages_.size(); ++i) {
      auto& message = messages_[i];
      check(operation_, message, group_.rank(), group_.size());
      if (message.tensor.numel() == 0) continue;
      const bool nccl = group_.nccl_ && message.tensor.is_cuda();
      (nccl ? over_nccl : over_gloo).push_back(i);
      buffers_.emplace_back();
      buffers_.back().tensor = message.tensor.detach().contiguous();
      buffers_.back().message = i;
      // Gloo reads and writes host memory.
      if (!nccl && message.tensor.is_cuda())
        buffers_.back().tensor = message.receives
                                     ? at::empty(message.tensor.sizes(), message.tensor.options().device(at::kCPU))
                                     : buffers_.back().tensor.to(at::kCPU);
    }
    group_.guarded(operation_, [&] { post(!over_nccl.empty()); });
  }

  void wait() override {
    group_.guarded(operation_, [&] {
      for (auto& work : works_) work->wait(group_.route_.timeout);
    });
    works_.clear();
    const at::NoGradGuard no_grad;
    for (const auto& buffer : buffers_)
      if (const auto& message = messages_[buffer.message]; message.receives && !buffer.tensor.is_same(message.tensor))
        if (!buffer.tensor.is_alias_of(message.tensor)) message.tensor.detach().copy_(buffer.tensor);
    buffers_.clear();
    messages_.clear();
  }

 private:
  struct Buffer {
    Tensor tensor;
    size_t message = 0;
  };

  void post(bool nccl) {
    // One group call of NCCL: an order in which one rank sends while the other sends too does not end them.
    if (nccl) group_.nccl_->startCoalescing();
    for (const auto& buffer : buffers_) {
      const auto& message = messages_[buffer.message];
      auto& backend = buffer.tensor.is_cuda() ? *group_.nccl_ : *group_.gloo_;
      const auto bytes = static_cast<int64_t>(buffer.tensor.nbytes());
      if (!message.receives) group_.route_.traffic->add("send", bytes, bytes);
      std::vector<Tensor> tensors{buffer.tensor};
      auto work = message.receives ? backend.recv(tensors, message.peer, tag_of(message))
                                   : backend.send(tensors, message.peer, tag_of(message));
      if (work && !buffer.tensor.is_cuda()) works_.push_back(std::move(work));
    }
    if (nccl) works_.push_back(group_.nccl_->endCoalescing());
  }

  ProcessCollective& group_;
  std::string operation_;
  std::vector<Message> messages_;
  std::vector<Buffer> buffers_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

std::unique_ptr<Transfer> ProcessCollective::start(std::string_view operation, std::vector<Message> messages) {
  return std::make_unique<Sending>(*this, std::string(operation), std::move(messages));
}

}  // namespace levin
