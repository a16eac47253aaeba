#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace levin::kernels::detail {

template <class F>
using Operator = c10::TypedOperatorHandle<F>;

/// The base of the operators "levin::..." of a file, which profilers, counters and meta tensors see:
///
///     struct PoolOps : Operators {
///       Operator<decltype(pool_on_meta)> forward = add("pool(Tensor x) -> Tensor", pool_on_meta);
///       PoolOps() { register_pool_cuda(cuda); }
///     };
///
///     operators<PoolOps>().forward.call(x);
class Operators {
 protected:
  /// What it does to meta tensors and on the CPU; null: nothing.
  template <class F>
  Operator<F> add(const std::string& schema, F* meta, std::type_identity_t<F>* cpu = nullptr,
                  const std::vector<at::Tag>& tags = {}) {
    const auto name = schema.substr(0, schema.find('('));
    schemas_.def(schema.c_str(), tags);
    if (meta) meta_.impl(name.c_str(), meta);
    if (cpu) cpu_.impl(name.c_str(), cpu);
    return c10::Dispatcher::singleton().findSchemaOrThrow(("levin::" + name).c_str(), "").typed<F>();
  }

  torch::Library cuda{torch::Library::IMPL, "levin", c10::DispatchKey::CUDA, __FILE__, __LINE__};

 private:
  torch::Library schemas_{torch::Library::FRAGMENT, "levin", std::nullopt, __FILE__, __LINE__};
  torch::Library meta_{torch::Library::IMPL, "levin", c10::DispatchKey::Meta, __FILE__, __LINE__};
  torch::Library cpu_{torch::Library::IMPL, "levin", c10::DispatchKey::CPU, __FILE__, __LINE__};
};

/// Registered at the first call, for the life of the process.
template <class Ops>
const Ops& operators() {
  static const auto& ops = *new Ops();
  return ops;
}

}  // namespace levin::kernels::detail
