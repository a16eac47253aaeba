#include "levin/profilers/kineto_session.h"

#include <atomic>
#include <cstdlib>
#include <set>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "levin/core/error.h"
#include "levin/core/trace_span.h"
#include "levin/devices/accelerator.h"

// Declared in torch/csrc/profiler/kineto_shim.h, which needs Kineto's own include path.
namespace torch::autograd::profiler {
TORCH_API void addMetadataJson(const std::string& key, const std::string& value);
}

namespace levin::detail {
namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ExperimentalConfig;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

std::atomic<bool> session_lives = false;

ProfilerConfig config_of(const SessionOptions& options) {
  ExperimentalConfig more;
  more.enable_cuda_sync_events = options.sync_events;
  return ProfilerConfig(options.nvtx ? ProfilerState::NVTX : ProfilerState::KINETO, options.shapes, options.memory,
                        /*with_stack=*/false, options.flops, /*with_modules=*/false, more);
}

std::set<ActivityType> activities_of(const SessionOptions& options) {
  std::set<ActivityType> all{ActivityType::CPU};
  if (options.cuda) all.insert(ActivityType::CUDA);
  return all;
}

/// Kineto asks for GPUs when a recording ends, and prints an error where there is no driver. What else it could print
/// on such a machine is about files, and write_trace() says that itself. It reads the variable once.
void expect_no_gpu() {
  constexpr const char* kAboveErrors = "5";
  if (cuda_accelerator().device_count() == 0) ::setenv("KINETO_LOG_LEVEL", kAboveErrors, /*overwrite=*/0);
}

void synchronize_cuda() {
  if (!uses_cuda()) return;
  const auto device = c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice();
  cuda_accelerator().synchronize(device);
}

}  // namespace

KinetoSession::KinetoSession(const SessionOptions& options) : options_(options) {
  LEVIN_CHECK(!torch::profiler::impl::profilerEnabled(),
              "[profiler] another profiler of torch records this thread already; stop it before");
  LEVIN_CHECK(!session_lives.exchange(true), "[profiler] another profile records already; a process has one at a time");
  if (options_.nvtx) return;
  expect_no_gpu();
  try {
    torch::autograd::profiler::prepareProfiler(config_of(options_), activities_of(options_));
  } catch (...) {
    session_lives = false;
    throw;
  }
}

KinetoSession::~KinetoSession() {
  try {
    // What was prepared is only let go of by a recording.
    if (!recording_ && !done_ && !options_.nvtx) start();
    if (recording_) stop();
  } catch (...) {  // on another thread: nothing can be done
  }
  session_lives = false;
}

void KinetoSession::check_thread() const {
  LEVIN_CHECK(std::this_thread::get_id() == thread_,
              "[profiler] a profile is started, stepped and stopped by one thread");
}

void KinetoSession::start() {
  check_thread();
  LEVIN_CHECK(!recording_ && !done_, "[profiler] this recording has begun already");
  const std::unordered_set<at::RecordScope> scopes{at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE,
                                                   at::RecordScope::BACKWARD_FUNCTION};
  torch::autograd::profiler::enableProfiler(config_of(options_), activities_of(options_), scopes);
  recording_ = true;
  publish_recording();
}

std::unique_ptr<torch::autograd::profiler::ProfilerResult> KinetoSession::stop() {
  check_thread();
  LEVIN_CHECK(recording_, "[profiler] this recording has not begun");
  if (options_.cuda) synchronize_cuda();
  withdraw_recording();
  recording_ = false;
  done_ = true;
  auto result = torch::autograd::profiler::disableProfiler();
  return options_.nvtx ? nullptr : std::move(result);
}

bool uses_cuda() {
  const auto& hooks = at::detail::getCUDAHooks();
  if (cuda_accelerator().device_count() == 0) return false;
  for (int i = 0; i < cuda_accelerator().device_count(); ++i)
    if (hooks.hasPrimaryContext(static_cast<c10::DeviceIndex>(i))) return true;
  return false;
}

void add_trace_metadata(const std::string& key, const std::string& json) {
  torch::autograd::profiler::addMetadataJson(key, json);
}

}  // namespace levin::detail
