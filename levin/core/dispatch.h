#pragma once

#include <functional>

#include <ATen/core/boxing/BoxedKernel.h>
#include <c10/core/DispatchKey.h>

namespace c10 {
class OperatorHandle;
}

namespace levin::detail {

/// Two keys of the dispatcher that LibTorch itself uses in its tests only, both above autograd and autocast; kTopKey is
/// the higher one. Who includes a key on a thread is called for the operators that it has taken there. Several share a
/// key, each with operators of its own, for the life of the process: so a kernel is also called for who includes the
/// key for another's sake, and must pass the call on then.
inline constexpr auto kTopKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
inline constexpr auto kLowerKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// What nobody has taken passes the key. Whoever registers a kernel calls it before.
void let_others_pass(c10::DispatchKey key);

/// Takes the operators of "aten" for which `chosen` is true, overload by overload, unless another has taken them.
void take_operators(c10::DispatchKey key, const std::function<bool(const c10::OperatorHandle&)>& chosen,
                    const c10::BoxedKernel& kernel);

}  // namespace levin::detail
