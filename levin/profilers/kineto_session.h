#pragma once

#include <memory>
#include <thread>

namespace torch::autograd::profiler {
struct ProfilerResult;
}

namespace levin::detail {

struct SessionOptions {
  bool shapes = false, memory = false, flops = false, sync_events = false;
  /// Kernels are recorded too.
  bool cuda = false;
  bool nvtx = false;
};

/// One recording of torch's profiler. Torch's functions crash or leak when they are called out of order or by another
/// thread; this calls them in order, and refuses another thread. There is one in a process at a time.
class KinetoSession {
 public:
  /// Prepares: from here on the device is made ready.
  explicit KinetoSession(const SessionOptions& options);
  ~KinetoSession();
  KinetoSession(const KinetoSession&) = delete;
  KinetoSession& operator=(const KinetoSession&) = delete;

  void start();
  bool is_recording() const { return recording_; }
  /// Waits for the device first: kernels that end after a recording are lost. Null for NVTX ranges.
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> stop();

 private:
  void check_thread() const;

  SessionOptions options_;
  std::thread::id thread_ = std::this_thread::get_id();
  bool recording_ = false, done_ = false;
};

/// Whether this process has work on a GPU.
bool uses_cuda();
/// A value of the top level of the trace that is being recorded, as JSON.
void add_trace_metadata(const std::string& key, const std::string& json);

}  // namespace levin::detail
