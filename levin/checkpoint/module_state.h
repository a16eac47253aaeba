#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/core/state_dict.h"

namespace levin {

using at::Tensor;

/// Every parameter and buffer of a module under its dotted name ("encoder.0.weight"), in the order of registration; the
/// tensors themselves, no copies. A tied tensor stands under each of its names.
StateDict module_state_dict(const torch::nn::Module& module);

class ShardMap;
struct TensorSlice;

struct ModuleLoadOptions {
  /// Names that are missing or not expected are an Error that lists them all. A wrong shape always is one.
  bool strict = true;
  /// Which tensors of the module are shards: they take their rows of full tensors, and shards as they are.
  const ShardMap* shards = nullptr;
};

/// Copies tensors into a module's own, converting dtype and device. Of a tied tensor any one name is enough. Nothing is
/// touched when it fails.
void load_module_state_dict(torch::nn::Module& module, const StateDict& state, ModuleLoadOptions options = {});

namespace detail {

/// Tensors that can be read one by one: a StateDict, a file, a part of a checkpoint.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// All there is. What is no tensor counts too: nobody has a place for it.
  virtual std::vector<std::string> names() const = 0;
  /// A tensor on the meta device with the shape and dtype; undefined when there is none of that name.
  virtual Tensor like(const std::string& name) const = 0;
  virtual Tensor read(const std::string& name) const = 0;
  /// Into a contiguous CPU tensor of that very shape and dtype.
  virtual void read_into(const std::string& name, Tensor& into) const = 0;
  /// Rows from `start` on, as many as `into` has, which is a contiguous CPU tensor of that dtype. By default reads all.
  virtual void read_rows(const std::string& name, int64_t start, Tensor& into) const;
  /// Whether tensors may be shards already, for those who hold the same shard.
  virtual bool has_parts() const { return false; }
};

/// A StateDict as a source. Borrows it.
std::unique_ptr<TensorSource> dict_source(const StateDict& state);

/// What it takes to fill modules from sources, found out before anything is touched.
class ModuleLoad {
 public:
  /// `prefix` ("model.") stands before the names in messages. Both arguments must outlive this object.
  /// Tensors that are shards take their rows, and their full shapes are compared.
  void add(torch::nn::Module& module, const TensorSource& source, const std::string& prefix,
           const ShardMap* shards = nullptr);
  void add_missing(std::string name) { missing_.push_back(std::move(name)); }
  /// Throws one line with everything that is wrong.
  void check(std::string_view operation, std::string_view where, bool strict) const;
  /// Copies, tensor by tensor; one tensor at a time is in memory twice, none when it can be read in place.
  void run(std::string_view where) const;

 private:
  struct Copy {
    const TensorSource* source;
    std::string name;
    Tensor target;
    /// First row that is taken; -1 for all of it.
    int64_t start = -1;
    /// What is taken in place of rows; null: rows.
    std::shared_ptr<const TensorSlice> slice = {};
  };
  std::vector<Copy> copies_;
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
  std::vector<std::string> wrong_shapes_;
  std::map<std::pair<c10::ScalarType, c10::ScalarType>, int> conversions_;
};

/// Copies in place when the shapes agree, without recording; an undefined target becomes the value.
void load_tensor(Tensor& target, const Tensor& value);
/// Reads what is like `like` (dtype and shape) to its place: straight, where it can lie there as it is read, else by
/// way of a tensor in host memory.
void read_to(Tensor target, const Tensor& like, const std::function<void(Tensor& into)>& read);
/// Some rows of a full tensor; a scalar has one.
Tensor narrow_rows(const Tensor& whole, int64_t start, int64_t rows);
/// Equal for two tensors exactly when they are one and the same piece of memory; empty for tensors without any.
std::string memory_key(const Tensor& tensor);
/// The same, and for tensors without memory (shards that have no rows) their identity.
std::string shard_key(const Tensor& tensor);

}  // namespace detail

}  // namespace levin
