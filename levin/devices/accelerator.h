#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace levin {

/// Bytes of a device's memory as the allocator counts them (on the CPU: resident memory of this process).
struct MemoryStats {
  int64_t allocated = 0;
  int64_t peak_allocated = 0;
  int64_t reserved = 0;
  int64_t peak_reserved = 0;
};

/// What a device is, for messages and hints.
struct DeviceInfo {
  std::string name;
  int64_t total_memory = 0;
  /// It has tensor cores that float32 matrix products leave idle unless float32_matmul_precision allows TF32.
  bool has_tf32 = false;
  /// Its tensor cores multiply in float8.
  bool has_fp8 = false;
};

/// A kind of device. There is one object per kind; a kind that this build or machine lacks is a null twin that says
/// why.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  /// "cpu", "cuda".
  virtual std::string name() const = 0;
  /// Number of usable devices here; 0 when there are none. For the CPU 1: it can host any number of processes.
  virtual int device_count() const = 0;
  /// Why device_count() is 0, for messages.
  virtual std::string why_unavailable() const = 0;
  /// Makes `device` current for this thread and returns it; called once per process before anything is allocated.
  virtual void set_device(c10::Device device) const = 0;
  /// Waits until the device has done all work given to it.
  virtual void synchronize(c10::Device device) const = 0;
  virtual MemoryStats memory(c10::Device device) const = 0;
  virtual void reset_peak_memory(c10::Device device) const = 0;
  /// Gives memory that the allocator keeps for reuse back to the device, and workspaces of libraries. Nothing else
  /// shall compute meanwhile.
  virtual void empty_cache(c10::Device) const {}
  virtual DeviceInfo info(c10::Device device) const = 0;
  /// While on, every operation for which the host waits for the device gives a warning that names it.
  virtual void set_sync_warnings(bool) const {}
  /// RNG state of the device's default generator, and back. CPU: the CPU generator.
  virtual at::Tensor rng_state(c10::Device device) const = 0;
  virtual void set_rng_state(c10::Device device, const at::Tensor& state) const = 0;
  /// At most that many bytes of the device are used by the allocator of this process: an allocation beyond throws. On
  /// the CPU nothing is limited.
  virtual void limit_memory(c10::Device, int64_t /*bytes*/) const {}
  /// What limit_memory set, else all that the device has.
  virtual int64_t memory_limit(c10::Device device) const { return info(device).total_memory; }
};

/// What the name of an accelerator means on a machine with that many CUDA devices; refuses as accelerator() does.
c10::DeviceType accelerator_type(const std::string& name, int cuda_devices);
/// "cpu", "cuda" or "gpu" (= cuda); "auto" is cuda when one is usable, else cpu. An unknown or unusable kind is an
/// Error.
const Accelerator& accelerator(const std::string& name = "auto");
/// The accelerator a device belongs to.
const Accelerator& accelerator_of(c10::Device device);

namespace detail {
const Accelerator& cpu_accelerator();
const Accelerator& cuda_accelerator();  // cuda.cpp, or its twin no_cuda.cpp
}  // namespace detail

}  // namespace levin
