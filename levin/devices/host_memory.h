#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

namespace levin {

/// Bytes of host memory that can still be had without swapping: what the system says, and what the container that this
/// process runs in allows. None where neither tells. LEVIN_HOST_MEMORY_GB says it in their place, for machines whose
/// memory grows as it is used.
std::optional<int64_t> available_host_memory();

/// Host memory that a CUDA device copies from and to while it computes, of exactly that size (torch's pinned memory is
/// rounded up to a power of two). It is dear to make, and is to be kept; whoever frees it knows that no copy is under
/// way. Without a CUDA device it is plain memory.
at::Tensor page_locked(int64_t elements, c10::ScalarType dtype);

/// Asks for large pages under a tensor in host memory that nobody has written to yet, and returns it: fewer of them are
/// to be made, found and walked through. Tensors on devices and small ones are left as they are.
at::Tensor on_large_pages(at::Tensor fresh);
void ask_for_large_pages(void* fresh, size_t bytes);

/// From here on the C library keeps what this process frees, for the next step, as CUDA's caching allocator does.
/// New memory of the system is filled with zeros page by page, which takes a tenth of a step of a small
/// model. Fabric on the CPU calls it. Settings of malloc in the environment (MALLOC_TRIM_THRESHOLD_,
/// MALLOC_MMAP_THRESHOLD_, glibc.malloc.* in GLIBC_TUNABLES) take precedence; C libraries other than glibc stay as they
/// are.
void keep_freed_memory();
/// Gives it back to the system, once: `empty_cache` of the CPU's accelerator.
void give_back_freed_memory();

namespace detail {
/// A tensor whose memory is a file without a name in that folder: host memory holds what was used lately. Its bytes
/// are reserved now: a disk that has no room for them is an Error here, and nothing stays behind.
at::Tensor on_disk(const std::string& folder, int64_t numel, c10::ScalarType dtype);
}  // namespace detail

}  // namespace levin
