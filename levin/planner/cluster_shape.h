#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace levin::planner {

/// What connects two GPUs. Bandwidth is of one GPU in one direction, in bytes per second, as the maker says.
struct Link {
  double bandwidth = 0;
  /// Seconds of one step of a collective.
  double latency = 0;
};

/// GPUs in nodes.
struct ClusterShape {
  std::string gpu = "h100";
  int64_t gpus = 8;
  int64_t gpus_per_node = 8;
  /// Bytes of device memory of one GPU.
  double memory = 80e9;
  /// FLOP/s of dense products in 16 bits, and bytes per second of device memory, as the maker says.
  double peak_flops = 989.4e12;
  double memory_bandwidth = 3.35e12;
  /// FLOP/s that dense products keep up: the clock falls with the power that they take.
  double sustained_flops = 673e12;
  int64_t multiprocessors = 132;
  /// Inside a node (NVLink, PCIe), between nodes (InfiniBand, Ethernet), and between a GPU and its host.
  Link inside = {450e9, 4e-6};
  Link between = {50e9, 12e-6};
  double host_link = 55e9;
};

/// The nodes that are built with this GPU: "h100", "a100", ... An unknown name is an Error with the nearest one.
/// `memory` 0: what the GPU has.
ClusterShape cluster_of(const std::string& gpu, int64_t gpus, double memory = 0, int64_t gpus_per_node = 8);
std::vector<std::string> known_gpus();

/// "200Gb" (bits, as network cards are sold), "25GB" (bytes), both per second and GPU.
double link_bandwidth(const std::string& text);

}  // namespace levin::planner
