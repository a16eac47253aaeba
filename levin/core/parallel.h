#pragma once

#include <cstdint>

#include <c10/util/FunctionRef.h>

namespace levin {

/// Calls body(from, to) with parts of [begin, end) of `grain` elements or more, on the threads that torch's operators
/// use. (at::parallel_for itself has threads only in code that is compiled with torch's OpenMP.) Within such a thread,
/// or where there is one only, it is one call. What the body throws is thrown here.
void parallel_for(int64_t begin, int64_t end, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

}  // namespace levin
