#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/// What only compute capability 9.0 has (sm_90a): asynchronous products of a warpgroup, 128 threads (wgmma), copies of
/// boxes of a tensor by the copy engine (TMA), and the barriers that such copies complete.
///
/// Matrices lie in shared memory as rows of 64 numbers of 16 bits, 128 bytes. The 16-byte chunks of a row are swizzled:
/// chunk c of row r is at c ^ (r % 8). Every matrix starts at a multiple of 1024 bytes.
namespace levin::kernels::detail {

/// Tells the compiler that all threads of a warp have this number. What follows from it is in uniform registers, where
/// products read their matrices from; else each of them waits for moves there.
__device__ __forceinline__ uint32_t same_in_warp(uint32_t x) {
  return __shfl_sync(~0u, x, 0);
}

/// A matrix as products read it.
__device__ __forceinline__ uint64_t matrix_at(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32,
                     kUnused = uint64_t{1} << 16;
  return kSwizzle128 | kEightRows | kUnused | ((address & 0x3FFFF) >> 4);
}
/// What matrices are away from each other, for the sum of a matrix and this.
__device__ constexpr uint64_t matrix_offset(int bytes) {
  return static_cast<uint64_t>(bytes / 16);
}

/// Before the first product that reads or writes registers which other instructions wrote.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/// The products since the last call are one group.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most kPending groups are not done.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving registers of a product that runs: to be called before it and after the wait for it.
template <int kCount>
__device__ __forceinline__ void pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(uint32_t (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

template <class T>
inline constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<__half> = true;

// The registers of a product's result, as operands of its instruction.
#define LEVIN_NUMBERS_4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define LEVIN_NUMBERS_16(d, i) \
  LEVIN_NUMBERS_4(d, i), LEVIN_NUMBERS_4(d, (i) + 4), LEVIN_NUMBERS_4(d, (i) + 8), LEVIN_NUMBERS_4(d, (i) + 12)
#define LEVIN_NUMBERS_32(d, i) LEVIN_NUMBERS_16(d, i), LEVIN_NUMBERS_16(d, (i) + 16)
#define LEVIN_NUMBERS_64(d, i) LEVIN_NUMBERS_32(d, i), LEVIN_NUMBERS_32(d, (i) + 32)
#define LEVIN_NUMBERS_52(d, i) LEVIN_NUMBERS_32(d, i), LEVIN_NUMBERS_16(d, (i) + 32), LEVIN_NUMBERS_4(d, (i) + 48)
#define LEVIN_OPERANDS_32                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LEVIN_OPERANDS_52 \
  LEVIN_OPERANDS_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51"

#define LEVIN_OPERANDS_64 \
  LEVIN_OPERANDS_52       \
  ", %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define LEVIN_NUMBERS_128(d, i) LEVIN_NUMBERS_64(d, i), LEVIN_NUMBERS_64(d, (i) + 64)
#define LEVIN_OPERANDS_128                                                                                      \
  LEVIN_OPERANDS_64                                                                                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, " \
  "%85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, "   \
  "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, "      \
  "%122, %123, %124, %125, %126, %127"

// A product of numbers of type T. `adds`: the operand that says whether it adds; then its shape, the registers of the
// result, the other operands of the instruction, and what all of them are.
#define LEVIN_PRODUCT_OF(type, adds, shape, numbers, operands, ...)                                                    \
  asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " adds ", 0;\nwgmma.mma_async.sync.aligned." shape ".f32." type \
               "." type " {" numbers "}, " operands ";\n}\n"                                                           \
               : __VA_ARGS__)
#define LEVIN_PRODUCT(T, ...)             \
  if constexpr (kIsHalf<T>)               \
    LEVIN_PRODUCT_OF("f16", __VA_ARGS__); \
  else                                    \
    LEVIN_PRODUCT_OF("bf16", __VA_ARGS__)

/// 52 numbers of `d`, from kFrom on, become A B^T, or grow by it where `add` is not 0. A is 64 x 16, B 104 x 16.
///
/// Of every 8 columns, thread t has numbers 2 * (t % 4) and the next one: of row t / 4 of the 16 rows of its warp, then
/// of row t / 4 + 8.
template <class T, int kFrom, int kCount>
__device__ __forceinline__ void product_64x104(float (&d)[kCount], uint64_t a, uint64_t b, int add) {
  LEVIN_PRODUCT(T, "%54", "m64n104k16", LEVIN_OPERANDS_52, "%52, %53, adds, 1, 1, 0, 0", LEVIN_NUMBERS_52(d, kFrom)
                : "l"(a), "l"(b), "r"(add));
}

/// The same where B is 64 x 16.
template <class T>
__device__ __forceinline__ void product_of_rows_64x64(float (&d)[32], uint64_t a, uint64_t b, int add) {
  LEVIN_PRODUCT(T, "%34", "m64n64k16", LEVIN_OPERANDS_32, "%32, %33, adds, 1, 1, 0, 0", LEVIN_NUMBERS_32(d, 0)
                : "l"(a), "l"(b), "r"(add));
}

/// The same where B is 128 x 16.
template <class T>
__device__ __forceinline__ void product_64x128(float (&d)[64], uint64_t a, uint64_t b, int add) {
  LEVIN_PRODUCT(T, "%66", "m64n128k16", LEVIN_OPERANDS_64, "%64, %65, adds, 1, 1, 0, 0", LEVIN_NUMBERS_64(d, 0)
                : "l"(a), "l"(b), "r"(add));
}

/// The same where B is 256 x 16.
template <class T>
__device__ __forceinline__ void product_64x256(float (&d)[128], uint64_t a, uint64_t b, int add) {
  LEVIN_PRODUCT(T, "%130", "m64n256k16", LEVIN_OPERANDS_128, "%128, %129, adds, 1, 1, 0, 0", LEVIN_NUMBERS_128(d, 0)
                : "l"(a), "l"(b), "r"(add));
}

/// The same for A^T B: A is 16 x 64, B 16 x 64.
template <class T>
__device__ __forceinline__ void product_64x64(float (&d)[32], uint64_t a, uint64_t b, int add) {
  LEVIN_PRODUCT(T, "%34", "m64n64k16", LEVIN_OPERANDS_32, "%32, %33, adds, 1, 1, 1, 1", LEVIN_NUMBERS_32(d, 0)
                : "l"(a), "l"(b), "r"(add));
}

/// The same for A B, where A, 64 x 16, is four registers from `at` on: 16 columns of a result, packed.
template <class T, int kCount>
__device__ __forceinline__ void product_64x64(float (&d)[32], const uint32_t (&a)[kCount], int at, uint64_t b,
                                              int add) {
  LEVIN_PRODUCT(T, "%37", "m64n64k16", LEVIN_OPERANDS_32, "{%32, %33, %34, %35}, %36, adds, 1, 1, 1",
                LEVIN_NUMBERS_32(d, 0)
                : "r"(a[at]), "r"(a[at + 1]), "r"(a[at + 2]), "r"(a[at + 3]), "l"(b), "r"(add));
}

#undef LEVIN_PRODUCT
#undef LEVIN_PRODUCT_OF
#undef LEVIN_NUMBERS_4
#undef LEVIN_NUMBERS_16
#undef LEVIN_NUMBERS_32
#undef LEVIN_NUMBERS_52
#undef LEVIN_NUMBERS_64
#undef LEVIN_NUMBERS_128
#undef LEVIN_OPERANDS_32
#undef LEVIN_OPERANDS_52
#undef LEVIN_OPERANDS_64
#undef LEVIN_OPERANDS_128

// ---- Barriers in shared memory and copies that complete them.

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Thread 0 calls it for each barrier, then fence_barriers, before a barrier of the block.
__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
__device__ __forceinline__ void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Arrives, and says how many bytes copies will bring.
__device__ __forceinline__ void expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// The phase is 0 for the first time that a barrier completes, then 1, then 0 again.
__device__ __forceinline__ void wait_for_barrier(uint32_t barrier, uint32_t phase) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra READY;\n"
      "bra AGAIN;\nREADY:\n}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

__device__ __forceinline__ void arrive_at(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// The barrier that another block of the cluster has in the same place.
__device__ __forceinline__ void arrive_at_block(uint32_t barrier, int block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(block)
      : "memory");
}

/// A box of a matrix, from number `column` of row `row` on; zeros where there is none.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int row, int column) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
/// The same to the same place in all blocks of the cluster whose bits are set, and their barriers.
__device__ __forceinline__ void load_box_for(uint16_t blocks, uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                             int row, int column) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}
/// What lies in the matrix alone.
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int row, int column) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(from),
               "r"(column), "r"(row)
               : "memory");
}

/// Rows from `row` on of a head [B, T, H, 64], zeros where there are none.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int row, int head,
                                         int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
/// Into the cache of the device, for a load that comes later.
__device__ __forceinline__ void prefetch_box(const CUtensorMap& map, int row, int head, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(0), "r"(row),
               "r"(head), "r"(batch)
               : "memory");
}
/// Rows that are there alone.
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(0), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Until the stores of this thread have read shared memory.
__device__ __forceinline__ void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_until_stored() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/// What this thread has written to shared memory can be read by products and copies, after a barrier.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Barrier `id` of the block, 1 to 15, of `count` threads.
__device__ __forceinline__ void sync_threads(int id, int count) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive_threads(int id, int count) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

/// Whether it is so for any of the threads of the barrier.
__device__ __forceinline__ bool any_of_threads(int id, int count, bool is_so) {
  int any;
  asm volatile(
      "{\n.reg .pred here, all;\nsetp.ne.s32 here, %3, 0;\nbar.red.or.pred all, %1, %2, here;\n"
      "selp.s32 %0, 1, 0, all;\n}\n"
      : "=r"(any)
      : "r"(id), "r"(count), "r"(static_cast<int>(is_so))
      : "memory");
  return any != 0;
}

/// Four matrices of 8 x 8 numbers; lane l gives where row l % 8 of matrix l / 8 is.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// ---- Registers of a warpgroup. All of its warps call it; what some give up others may take.

template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// ---- Launches.

/// Boxes of a tensor of 16-bit numbers in memory, its innermost dimension first, as load_box and store_box take them.
template <int kDimensions>
struct BoxTensor {
  cuuint64_t sizes[kDimensions];
  cuuint64_t strides[kDimensions - 1];  // in bytes, of all dimensions but the innermost
  cuuint32_t box[kDimensions];
};

template <int kDimensions>
cudaError_t box_map(CUtensorMap& map, const void* data, bool half, const BoxTensor<kDimensions>& of) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const auto encode = []() -> Encode {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const auto error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  cuuint32_t steps[kDimensions];
  for (auto& step : steps) step = 1;
  const auto type = half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto result = encode(&map, type, kDimensions, const_cast<void*>(data), of.sizes, of.strides, of.box, steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/// Boxes of `box_rows` rows of 64 numbers of a matrix [rows, columns]. Pointer and rows are multiples of 16 bytes.
inline cudaError_t matrix_map(CUtensorMap& map, const void* data, bool half, int64_t rows, int64_t columns,
                              int box_rows) {
  const auto size = [](int64_t count) { return static_cast<cuuint64_t>(count); };
  return box_map<2>(map, data, half,
                    {{size(columns), size(rows)}, {size(2 * columns)}, {64, static_cast<cuuint32_t>(box_rows)}});
}

/// Called first: a thread of autograd may have no context yet, and the driver wants one for maps.
template <class... Parameters>
cudaError_t allow_shared_memory(void (*kernel)(Parameters...), int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace levin::kernels::detail
