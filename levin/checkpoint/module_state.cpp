#include "levin/checkpoint/module_state.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/checkpoint/shards.h"
#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/nn/named_tensors.h"

namespace levin {
namespace {

/// A StateDict as a source; looked up by name once, as a list of items is slow to search.
class DictSource : public detail::TensorSource {
 public:
  explicit DictSource(const StateDict& state) {
    for (const auto& [name, value] : state) {
      names_.push_back(name);
      if (value.is_tensor()) tensors_.emplace(name, &value.to_tensor());
    }
  }
  std::vector<std::string> names() const override { return names_; }
  Tensor like(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? Tensor() : *found->second;
  }
  Tensor read(const std::string& name) const override { return *tensors_.at(name); }
  void read_into(const std::string& name, Tensor& into) const override { into.copy_(*tensors_.at(name)); }
  bool has_parts() const override { return true; }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, const Tensor*> tensors_;
};

std::string shape_text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

bool lies_as_read(const Tensor& target, const Tensor& like) {
  return target.is_cpu() && target.is_contiguous() && target.scalar_type() == like.scalar_type() &&
         !target.is_inference();
}

}  // namespace

std::unique_ptr<detail::TensorSource> detail::dict_source(const StateDict& state) {
  return std::make_unique<DictSource>(state);
}

std::string detail::memory_key(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0 || !tensor.storage().data()) return {};
  return fmt::format("{}+{} {} [{}] [{}]", fmt::ptr(tensor.storage().data()), tensor.storage_offset(),
                     static_cast<int>(tensor.scalar_type()), fmt::join(tensor.sizes(), ","),
                     fmt::join(tensor.strides(), ","));
}

std::string detail::shard_key(const Tensor& tensor) {
  auto key = memory_key(tensor);
  return key.empty() ? fmt::format("{}", fmt::ptr(tensor.unsafeGetTensorImpl())) : key;
}

void detail::load_tensor(Tensor& target, const Tensor& value) {
  const at::NoGradGuard no_grad;
  if (!target.defined()) {
    target = value;
    return;
  }
  LEVIN_CHECK(target.sizes() == value.sizes(), "[state] a tensor of shape ", shape_text(value.sizes()),
              " cannot be loaded into one of ", shape_text(target.sizes()));
  target.copy_(value);
}

void detail::read_to(Tensor target, const Tensor& like, const std::function<void(Tensor& into)>& read) {
  const at::NoGradGuard no_grad;
  LEVIN_CHECK(target.sizes() == like.sizes(), "[state] a tensor of shape ", shape_text(like.sizes()),
              " cannot be loaded into one of ", shape_text(target.sizes()));
  if (lies_as_read(target, like)) {
    read(target);
    target.unsafeGetTensorImpl()->bump_version();
    return;
  }
  auto part = at::empty(target.sizes(), at::TensorOptions().dtype(like.scalar_type()));
  read(part);
  target.copy_(part);
}

Tensor detail::narrow_rows(const Tensor& whole, int64_t start, int64_t rows) {
  return (whole.dim() == 0 ? whole.reshape({1}) : whole).narrow(0, start, rows);
}

void detail::TensorSource::read_rows(const std::string& name, int64_t start, Tensor& into) const {
  into.copy_(narrow_rows(read(name), start, rows_of(into)).reshape(into.sizes()));
}

void detail::ModuleLoad::add(torch::nn::Module& module, const TensorSource& source, const std::string& prefix,
                             const ShardMap* shards) {
  // Names of one tensor stand together; of these the source needs to have one.
  std::vector<std::pair<Tensor, std::vector<std::string>>> targets;
  std::unordered_map<std::string, size_t> known;
  std::unordered_set<std::string> expected;
  for (auto& [name, tensor] : detail::named_tensors(module)) {
    expected.insert(name);
    if (const auto [found, is_new] = known.emplace(shard_key(tensor), targets.size()); !is_new) {
      targets[found->second].second.push_back(name);
      continue;
    }
    targets.push_back({tensor, {name}});
  }
  for (auto& [tensor, names] : targets) {
    const auto name = std::find_if(names.begin(), names.end(), [&](const auto& n) { return source.like(n).defined(); });
    if (name == names.end()) {
      missing_.push_back(prefix + names.front());
      continue;
    }
    const auto like = source.like(*name);
    const auto* place = shards ? shards->find(tensor) : nullptr;
    const at::IntArrayRef needed = place ? at::IntArrayRef(place->sizes) : tensor.sizes();
    const bool whole = like.sizes() == needed;
    if (!whole && !(place && source.has_parts() && like.sizes() == tensor.sizes())) {
      wrong_shapes_.push_back(fmt::format("{}{} ({} in the file, {} in the module)", prefix, *name,
                                          shape_text(like.sizes()), shape_text(needed)));
      continue;
    }
    LEVIN_CHECK(!place || fits(tensor, *place), "[checkpoint.load] \"", prefix, *name, "\" has shape ",
                shape_text(tensor.sizes()), " here, which is no shard of ", shape_text(needed), " from row ",
                place->start, " on; load between steps");
    if (like.scalar_type() != tensor.scalar_type()) ++conversions_[{like.scalar_type(), tensor.scalar_type()}];
    copies_.push_back({&source, *name, tensor, place && whole ? place->start : -1,
                       place && whole ? place->slice : std::shared_ptr<const TensorSlice>()});
  }
  for (const auto& name : source.names())
    if (!expected.contains(name)) unexpected_.push_back(prefix + name);
}

void detail::ModuleLoad::check(std::string_view operation, std::string_view where, bool strict) const {
  std::vector<std::string> parts;
  if (strict && !missing_.empty()) parts.push_back("missing: " + join(missing_));
  if (strict && !unexpected_.empty()) parts.push_back("unexpected: " + join(unexpected_));
  if (!wrong_shapes_.empty()) parts.push_back("wrong shape: " + join(wrong_shapes_));
  if (!parts.empty()) throw Error(fmt::format("[{}] \"{}\" does not fit: {}", operation, where, join(parts, "; ")));
}

void detail::ModuleLoad::run(std::string_view where) const {
  const at::NoGradGuard no_grad;
  for (const auto& [types, count] : conversions_)
    log_info(fmt::format("\"{}\": {} {} converted from {} to {}", where, count,
                         count == 1 ? "tensor was" : "tensors were", c10::toString(types.first),
                         c10::toString(types.second)));
  for (const auto& copy : copies_) {
    auto target = copy.target;
    const auto like = at::empty(target.sizes(), copy.source->like(copy.name).options().device(at::kMeta));
    if (copy.slice)
      target.copy_(read_slice(*copy.slice, at::TensorOptions().dtype(like.dtype()),
                              [&](int64_t start, Tensor& into) { copy.source->read_rows(copy.name, start, into); }));
    else if (copy.start >= 0)
      read_to(target, like, [&](Tensor& into) { copy.source->read_rows(copy.name, copy.start, into); });
    else if (lies_as_read(target, like))
      read_to(target, like, [&](Tensor& into) { copy.source->read_into(copy.name, into); });
    else
      target.copy_(copy.source->read(copy.name));  // which may be on the device already
  }
}

StateDict module_state_dict(const torch::nn::Module& module) {
  StateDict state;
  for (auto& [name, tensor] : detail::named_tensors(module)) state[name] = std::move(tensor);
  return state;
}

void load_module_state_dict(torch::nn::Module& module, const StateDict& state, ModuleLoadOptions options) {
  const DictSource source(state);
  detail::ModuleLoad load;
  load.add(module, source, "", options.shards);
  load.check("load_module_state_dict", "the state", options.strict);
  load.run("the state");
}

}  // namespace levin
