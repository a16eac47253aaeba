#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>

namespace levin::detail {

using at::Tensor;
using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

class Tape;

/// The tape of a tensor without data, null for all others. It hangs on the storage itself, so that views and shallow
/// copies find it, and it goes when the last of them goes.
Tape* tape_of(const c10::StorageImpl* storage);
Tape* tape_of(const Tensor& tensor);

/// What was done to tensors that do not exist yet, in order.
class Tape : public std::enable_shared_from_this<Tape> {
 public:
  /// A tensor with the shape, strides and dtype of `like` on a device, without data.
  Tensor make(const Tensor& like, c10::Device device);

  /// `args` has the arguments of a factory that is to fill `result`.
  void record_factory(const c10::OperatorHandle& op, torch::jit::Stack args, const Tensor& result);
  /// `args` has the arguments of an in-place op; the first one is the tensor without data.
  void record_inplace(const c10::OperatorHandle& op, torch::jit::Stack args);

  /// Gives storages their memory and, with `initialize`, their values.
  void materialize(const std::set<c10::StorageImpl*>& storages, bool initialize);
  /// Storages that still wait.
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> waiting() const;

  /// Around a random op that runs at once between recorded ones, so that it draws what it would have drawn.
  void before_random(c10::Device device);
  void after_random(c10::Device device);
  /// The scope has ended: remembers where the generators stand.
  void end_scope();

 private:
  struct Record {
    c10::OperatorHandle op;
    torch::jit::Stack
        args;  // an in-place op's own tensor is left out: the tape must not keep alive what keeps it alive
    bool inplace;
    bool random;
    bool done = false;
    c10::Device device;
    WeakStorage target;
    size_t nbytes;
    std::vector<int64_t> sizes, strides;
    int64_t offset;
    c10::ScalarType dtype;
    std::optional<Tensor> rng_before = {};  // known once a later record was run first
  };
  /// A default generator as the records see it: `state` is where it stands before record `frontier`.
  struct Rng {
    Tensor state;
    size_t frontier;
    std::optional<Tensor> left = {};
  };

  void add(const c10::OperatorHandle& op, torch::jit::Stack args, const Tensor& target, bool inplace);
  void run(size_t index);
  /// Runs a record on a storage; a null storage is a scratch one, for the sake of the random numbers.
  void execute(Record& record, c10::StorageImpl* storage);
  void advance(c10::Device device, size_t until);
  void settle();

  std::vector<Record> records_;
  std::vector<WeakStorage> storages_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Rng> rngs_;
};

}  // namespace levin::detail
