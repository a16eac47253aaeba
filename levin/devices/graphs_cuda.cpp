// CUDA graphs through torch's class, which knows the allocator and the random generators.
#include <map>
#include <mutex>

#include <ATen/Functions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/graphs.h"
#include "levin/devices/graphs_rng.h"

namespace levin::detail {
namespace {

using GeneratorState = c10::intrusive_ptr<at::CUDAGeneratorState>;

// torch hides the state of a generator. The default one of a device gets an equal state that we hold too, once: graphs
// refer to the state, so it must stay the same from then on.
GeneratorState& generator_state(c10::Device device) {
  static std::mutex mutex;
  static auto& states = *new std::map<c10::DeviceIndex, GeneratorState>();  // outlives the generators of torch
  const std::lock_guard lock(mutex);
  auto& state = states[device.index()];
  if (!state) {
    auto generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
    const std::lock_guard of_generator(generator.mutex());
    auto* impl = generator.get<at::CUDAGeneratorImpl>();
    state = c10::make_intrusive<at::CUDAGeneratorState>(impl->current_seed(), impl->philox_offset_per_thread());
    impl->graphsafe_set_state(c10::make_intrusive<at::CUDAGeneratorImpl>(device.index(), state));
  }
  return state;
}

// What a failing clean-up throws follows from the failure that is reported already.
template <class F>
bool tried(F&& f) {
  try {
    f();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

class CudaGraph final : public DeviceGraph {
 public:
  void replay() override { graph.replay(); }
  void destroy() override { graph.reset(); }
  at::cuda::CUDAGraph graph;
};

class CudaGraphs final : public GraphDevice {
 public:
  explicit CudaGraphs(c10::Device device) : device_(device), stream_(c10::cuda::CUDAStream(graph_stream(device))) {}

  c10::Device device() const override { return device_; }
  std::optional<c10::Stream> stream() const override { return stream_.unwrap(); }

  std::shared_ptr<DeviceGraph> capture(const std::function<void()>& body) override {
    const c10::cuda::CUDAGuard device_guard(device_);
    auto& random = generator_state(device_);
    std::erase_if(alive_, [](const auto& graph) { return graph.expired(); });
    // A pool dies with the last graph that uses it, and its name cannot be used again.
    if (alive_.empty()) pool_ = at::cuda::graph_pool_handle();
    c10::cuda::getCurrentCUDAStream(device_.index()).synchronize();
    auto made = std::make_shared<CudaGraph>();
    std::exception_ptr failure;
    {
      const c10::cuda::CUDAStreamGuard stream_guard(stream_);
      try {
        // Other threads (loaders, writers of checkpoints) may use CUDA meanwhile.
        made->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
        body();
      } catch (...) {
        failure = std::current_exception();
      }
      try {
        made->graph.capture_end();
      } catch (...) {
        if (!failure) failure = std::current_exception();
        clean_up(*random);
      }
    }
    // The seed of the generator was copied to the device on that stream; replays copy it on another one.
    stream_.synchronize();
    if (failure) {
      made.reset();
      std::rethrow_exception(failure);
    }
    alive_.push_back(made);
    return made;
  }

  int64_t captured_nodes() const override {
    size_t count = 0;
    const auto graph = captured_graph();
    return graph && well(cudaGraphGetNodes(graph, nullptr, &count)) ? static_cast<int64_t>(count) : 0;
  }

  std::vector<bool> captured_kernels() const override {
    const auto graph = captured_graph();
    size_t count = static_cast<size_t>(captured_nodes()), edges = 0;
    std::vector<cudaGraphNode_t> nodes(count);
    if (count == 0 || !well(cudaGraphGetNodes(graph, nodes.data(), &count))) return {};
    if (!well(edges_of(graph, nullptr, nullptr, nullptr, &edges)) || edges + 1 != count) return {};
    std::vector<cudaGraphNode_t> from(edges), to(edges);
    std::vector<cudaGraphEdgeData> kinds(edges);  // without a place for these CUDA refuses
    if (edges > 0 && !well(edges_of(graph, from.data(), to.data(), kinds.data(), &edges))) return {};
    // One after the other, as they were captured: each node but the last leads to the next alone.
    std::map<cudaGraphNode_t, size_t> place;
    for (size_t i = 0; i < count; ++i) place[nodes[i]] = i;
    for (size_t i = 0; i < edges; ++i)
      if (place[to[i]] != place[from[i]] + 1) return {};
    std::vector<bool> kernels;
    for (auto* node : nodes) {
      cudaGraphNodeType type{};
      if (!well(cudaGraphNodeGetType(node, &type))) return {};
      kernels.push_back(type == cudaGraphNodeTypeKernel);
    }
    return kernels;
  }

  void upload(const Tensor& to, const void* host, size_t bytes) override {
    // From memory that is not pinned: CUDA takes a copy of it before the call returns, and does not wait for the
    // stream.
    C10_CUDA_CHECK(cudaMemcpyAsync(to.mutable_data_ptr(), host, bytes, cudaMemcpyHostToDevice,
                                   c10::cuda::getCurrentCUDAStream(device_.index()).stream()));
  }

  Tensor alias(const Tensor& tensor, std::shared_ptr<DeviceGraph> graph) override {
    return at::from_blob(
        tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [graph = std::move(graph)](void*) {},
        tensor.options());
  }

  void empty_cache() override {
    cuda_accelerator().empty_cache(device_);  // also workspaces of cuBLAS: the capture has its own
  }

 private:
  /// Of the capture under way; null when there is none.
  cudaGraph_t captured_graph() const {
    cudaStreamCaptureStatus status{};
    cudaGraph_t graph = nullptr;
    const cudaGraphNode_t* last = nullptr;
    const cudaGraphEdgeData* kinds = nullptr;
    size_t count = 0;
#if CUDART_VERSION >= 13000
    const auto error = cudaStreamGetCaptureInfo(stream_.stream(), &status, nullptr, &graph, &last, &kinds, &count);
#else
    const auto error = cudaStreamGetCaptureInfo_v3(stream_.stream(), &status, nullptr, &graph, &last, &kinds, &count);
#endif
    return well(error) && status == cudaStreamCaptureStatusActive ? graph : nullptr;
  }

  static cudaError_t edges_of(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, cudaGraphEdgeData* kinds,
                              size_t* count) {
#if CUDART_VERSION >= 13000
    return cudaGraphGetEdges(graph, from, to, kinds, count);
#else
    return cudaGraphGetEdges_v2(graph, from, to, kinds, count);
#endif
  }

  // An error that is left would be taken for that of the next kernel.
  static bool well(cudaError_t error) {
    if (error != cudaSuccess) (void)cudaGetLastError();
    return error == cudaSuccess;
  }

  // torch's capture_end ends an invalid capture too, but throws before it has told allocators and generator.
  void clean_up(at::CUDAGeneratorState& random) {
    (void)cudaGetLastError();
    if (tried([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device_.index(), pool_); }))
      tried([&] { c10::cuda::CUDACachingAllocator::releasePool(device_.index(), pool_); });
    auto* host = at::getHostAllocator(at::kCUDA);
    if (tried([&] { host->end_allocate_to_pool(pool_); })) tried([&] { host->release_pool(pool_); });
    random.capturing_ = false;
    random.offset_intragraph_ = 0;
  }

  c10::Device device_;
  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t pool_{0, 0};
  std::vector<std::weak_ptr<CudaGraph>> alive_;
};

}  // namespace

std::shared_ptr<GraphDevice> cuda_graphs(c10::Device device) {
  return std::make_shared<CudaGraphs>(device);
}

c10::Stream graph_stream(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  const auto made = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()).unwrap();
  return streams.emplace(device.index(), made).first->second;
}

std::optional<at::Tensor> captured_rng(c10::Device device) {
  if (!is_capturing()) return {};
  auto& state = generator_state(device);
  if (!state->capturing_) return {};
  return at::full({1}, static_cast<int64_t>(state->offset_intragraph_), at::kLong);
}

bool set_captured_rng(c10::Device device, const at::Tensor& to) {
  if (!is_capturing()) return false;
  auto& state = generator_state(device);
  if (!state->capturing_) return false;
  LEVIN_CHECK(to.scalar_type() == at::kLong && to.numel() == 1,
              "[compile] the step sets the random generator to a state from before");
  state->offset_intragraph_ = static_cast<uint64_t>(*to.const_data_ptr<int64_t>());
  return true;
}

}  // namespace levin::detail
