#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>

/// A training step as a list of calls on memory: what `trace` records, passes change and `run` runs.
namespace levin::compile {

using at::Tensor;

/// A place in Graph::storages.
using StorageId = int32_t;

/// Memory that the step works on.
struct GraphStorage {
  c10::Device device = c10::kCPU;
  int64_t bytes = 0;
  /// The memory itself, where it is older than the step: parameters, buffers, inputs, state of the optimizer.
  c10::Storage memory = {};
  bool enters = false;
  /// Somebody holds it after the step, or it enters and is written: its last version must be there at the end.
  bool leaves = false;
  /// Of memory that enters: what autograd counts writes of the user with.
  std::optional<c10::VariableVersion> counter = {};
};

/// A tensor over a storage at a version. Views are no nodes: they are only such tensors with other sizes, strides and
/// offsets. A version counts the nodes that have written into the storage (0: as it entered, or nothing yet).
struct View {
  StorageId storage = -1;
  /// Read: how many nodes wrote before. Written: that number with this node.
  int32_t version = 0;
  at::ScalarType dtype = at::kFloat;
  int64_t offset = 0;
  std::vector<int64_t> sizes = {}, strides = {};

  int64_t numel() const;
  int64_t dim() const { return static_cast<int64_t>(sizes.size()); }
  bool is_contiguous() const;
  /// No two elements at one place, and no gaps.
  bool is_dense() const;
  /// The same elements of the same storage in the same order, whatever the version.
  bool same_place(const View& other) const;
  bool operator==(const View&) const = default;
};

/// An argument of an operator: a tensor, a list of tensors (with holes, where it may have some), or what is no tensor
/// (numbers, lists of numbers, dtypes, generators, None).
using Argument = std::variant<c10::IValue, View, std::vector<std::optional<View>>>;

/// What runs in place of operators: a group of fused operators, or a pattern's replacement. It works on memory: it
/// neither allocates what it writes nor keeps tensors. It may be run on any stream, under the capture of a CUDA graph.
class Call {
 public:
  virtual ~Call() = default;
  /// "mul+add+tanh", "causal_attention": for messages and reports.
  virtual std::string name() const = 0;
  /// Tensors in the order of Node::reads and Node::writes, with their sizes, strides and dtypes.
  virtual void run(std::span<const Tensor> reads, std::span<const Tensor> writes) = 0;
  /// Bits may differ from those of the operators (order of sums, no rounding between operators).
  virtual bool changes_bits() const { return true; }
  /// What Graph::print shows below the node; may be empty.
  virtual std::string text() const { return {}; }
};

enum class Phase : uint8_t { kForward, kBackward, kOther };

/// One step of the list: an operator of the dispatcher with its arguments, or a Call.
struct Node {
  /// Null: `call` runs.
  std::optional<c10::OperatorHandle> op = {};
  /// The operator's arguments in the order of its schema; empty for a Call.
  std::vector<Argument> args = {};
  /// All tensors that are read, lists flattened, in order. What is written in place and read before is among them.
  std::vector<View> reads = {};
  /// All tensors that are written: results in new memory, arguments in place, `out=`. An operator's results come first,
  /// in order, undefined ones left out.
  std::vector<View> writes = {};
  std::shared_ptr<Call> call = {};
  /// For an operator: for each tensor that it returns (lists flattened, undefined ones too) its place in `writes`, or
  /// -1 where nothing is to be bound (undefined, or an argument that was written in place).
  std::vector<int32_t> results = {};

  Phase phase = Phase::kOther;
  /// The unit (LEVIN_MODULE) it belongs to, or empty: a place in Graph::units, -1 for none.
  int32_t unit = -1;
  /// Draws random numbers: the order among these stays.
  bool random = false;
  /// The keys of the dispatcher that the thread had: kernels which call other operators depend on them (autocast).
  c10::DispatchKeySet included = {}, excluded = {};
  /// Collectives and operators that nobody knows: nothing moves across.
  bool barrier = false;

  /// "aten::mul.Tensor", or the name of the Call.
  std::string name() const;
  /// By the schema's name of the argument; null where it is none of that kind (an operator without it, too).
  const View* tensor(std::string_view argument) const;
  const c10::IValue* number(std::string_view argument) const;
  bool is(std::string_view operator_name) const { return op && name() == operator_name; }
};

/// A step. The order of `nodes` is one in which it may run.
class Graph {
 public:
  std::vector<GraphStorage> storages;
  std::vector<Node> nodes;
  std::vector<std::string> units;
  /// Memory that enters whose contents decided what the graph is: it holds as long as nobody writes them.
  std::vector<StorageId> decided_by;
  /// Operators took the place of others that give other bits.
  bool has_other_bits = false;

  StorageId add_storage(c10::Device device, int64_t bytes);
  /// A new contiguous tensor in a storage of its own.
  View add_tensor(std::vector<int64_t> sizes, at::ScalarType dtype, c10::Device device);
  c10::Device device_of(const View& value) const { return storages[static_cast<size_t>(value.storage)].device; }

  /// Counts versions again after nodes were added, taken away or moved: each write is one more.
  void renumber();
  /// Takes away the nodes that are marked; `dead` has a place for each.
  void erase(const std::vector<bool>& dead);
  /// Throws levin::Error where the graph does not hold together: a value is read before it is written, versions do not
  /// count, tensors reach beyond their storage.
  void check() const;
  std::string print() const;
  std::string print(const Node& node) const;
};

/// Who writes and reads what, for passes. Made from a graph whose versions are counted; nodes by their places.
class GraphIndex {
 public:
  explicit GraphIndex(const Graph& graph);
  /// The node that wrote this version; -1: it entered.
  int32_t writer(StorageId storage, int32_t version) const;
  int32_t writer(const View& value) const { return writer(value.storage, value.version); }
  /// Nodes that read this version of the storage, in order (each once).
  const std::vector<int32_t>& readers(StorageId storage, int32_t version) const;
  const std::vector<int32_t>& readers(const View& value) const { return readers(value.storage, value.version); }
  /// The last version of a storage.
  int32_t last_version(StorageId storage) const;
  /// Written once, does not enter, does not leave: nobody but its readers sees it.
  bool is_inner(StorageId storage) const;

 private:
  const Graph& graph_;
  struct Of {
    std::vector<int32_t> writers;
    std::vector<std::vector<int32_t>> readers;
  };
  std::vector<Of> of_;
};

/// A pass changes the graph and says in one line what it did (empty: nothing).
using Pass = std::function<std::string(Graph&)>;

}  // namespace levin::compile
