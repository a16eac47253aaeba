#pragma once

#include <cstring>

#include "levin/devices/graphs.h"

namespace levin::generate_tests {

/// Graphs without a device: a replay runs what would have been captured.
class PlayedGraphs final : public detail::GraphDevice {
 public:
  c10::Device device() const override { return at::kCPU; }
  std::shared_ptr<detail::DeviceGraph> capture(const std::function<void()>& body) override {
    if (refuses) throw Error("[test] no capture");
    return std::make_shared<Graph>(*this, body);
  }
  void upload(const at::Tensor& to, const void* host, size_t bytes) override {
    std::memcpy(to.mutable_data_ptr(), host, bytes);
    ++uploads;
  }
  at::Tensor alias(const at::Tensor& tensor, std::shared_ptr<detail::DeviceGraph>) override { return tensor; }
  void empty_cache() override {}

  bool refuses = false;
  int64_t uploads = 0, replays = 0;

 private:
  struct Graph final : detail::DeviceGraph {
    Graph(PlayedGraphs& of, std::function<void()> work) : device(of), body(std::move(work)) {}
    void replay() override {
      body();
      ++device.replays;
    }
    PlayedGraphs& device;
    std::function<void()> body;
  };
};

}  // namespace levin::generate_tests
