#pragma once

#include <functional>
#include <vector>

#include <ATen/core/boxing/BoxedKernel.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>

namespace c10 {
class OperatorHandle;
}

namespace levin::detail {

/// Two keys of the dispatcher that LibTorch itself uses in its tests only, both above autograd and autocast; kTopKey is
/// the higher one. Who includes a key on a thread is called for the operators that it has taken there. Several share a
/// key for the life of the process: so a kernel is also called for who includes the key for another's sake, and must
/// pass the call on then.
inline constexpr auto kTopKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
inline constexpr auto kLowerKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// A key below autograd, autocast and functionalization, and above the kernels of every device, which LibTorch leaves
/// to others: forward, backward and optimizers pass it as plain operators.
inline constexpr auto kBelowAutogradKey = c10::DispatchKey::Fake;

/// What nobody has taken passes the key. Whoever registers a kernel calls it before.
void let_others_pass(c10::DispatchKey key);

/// Takes the operators of "aten" for which `chosen` is true, overload by overload. Where another has taken one already,
/// its kernel is called first; each calls pass_on in the end.
void take_operators(c10::DispatchKey key, const std::function<bool(const c10::OperatorHandle&)>& chosen,
                    const c10::BoxedKernel& kernel);

/// Within a kernel of take_operators: calls the next one that has taken the operator at this key, or else the operator
/// below the key.
void pass_on(c10::DispatchKey key, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
             std::vector<c10::IValue>* stack);

}  // namespace levin::detail
