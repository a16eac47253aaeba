#include "levin/nn/tensor/split.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fnmatch.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/module_access.h"
#include "levin/nn/residual_norm.h"
#include "levin/nn/tensor/functions.h"
#include "levin/nn/tensor/region.h"
#include "levin/nn/unit.h"

namespace levin {
namespace {

// Inside of sharding and of checkpoints, which run regions again.
constexpr auto kRegionOrder = static_cast<Order>(350);
constexpr auto kSequenceOrder = static_cast<Order>(250);
constexpr auto kRandomOrder = static_cast<Order>(340);

bool is_sequence_role(TensorRole role) {
  return role == TensorRole::kSequenceBegin || role == TensorRole::kSequenceEnd;
}

std::string child_name(const std::string& parent, const std::string& name) {
  return parent.empty() ? name : parent + "." + name;
}

/// What stands around a module in the walk over the tree.
struct Surroundings {
  std::shared_ptr<detail::TensorRegion> region = {};
  /// The nearest attention, or none.
  std::optional<HeadShare> heads = {};
  TensorParallelPart* model = nullptr;
};

}  // namespace

HeadShare HeadShare::of(const HeadCounts& all, int64_t ranks, int64_t rank, const std::string& name) {
  LEVIN_CHECK(ranks <= all.heads, "[tensor_parallel] \"", name, "\" has ", all.heads, " heads, which ", ranks,
              " ranks cannot share: each needs one");
  HeadShare share{.heads = {}, .kv_heads = {}, .all = all};
  const auto group = all.heads / all.kv_heads;
  if (all.kv_heads >= ranks) {
    share.kv_heads = Share::of(all.kv_heads, ranks, rank);
    share.heads = {share.kv_heads.first * group, share.kv_heads.count * group};
    return share;
  }
  // Several ranks have one head of keys, and share the queries that look at it.
  const auto key = rank * all.kv_heads / ranks;
  const auto first_of = [&](int64_t k) { return (k * ranks + all.kv_heads - 1) / all.kv_heads; };
  const auto of_group = Share::of(group, first_of(key + 1) - first_of(key), rank - first_of(key));
  share.kv_heads = {key, 1};
  share.heads = {key * group + of_group.first, of_group.count};
  return share;
}

VocabShare VocabShare::of(int64_t all, TensorRanks ranks) {
  const auto rows = Share::of(all, ranks->size(), ranks->rank());
  return {std::move(ranks), rows, all};
}

std::vector<int64_t> VocabShare::counts() const {
  std::vector<int64_t> counts;
  for (int i = 0; i < ranks->size(); ++i) counts.push_back(Share::of(all, ranks->size(), i).count);
  return counts;
}

std::vector<int64_t> TensorSlice::sizes() const {
  auto sizes = whole;
  if (dim > 0 && rows.count >= 0) sizes[0] = rows.count;
  auto& own = sizes[static_cast<size_t>(dim)] = 0;
  for (const auto& range : ranges) own += range.count;
  return sizes;
}

std::vector<TensorSlice::Box> TensorSlice::boxes() const {
  std::vector<Box> boxes;
  int64_t at = 0;
  for (const auto& range : ranges) {
    Box box{std::vector<int64_t>(whole.size(), 0), sizes(), at};
    if (dim > 0 && rows.count >= 0) box.start[0] = rows.first;
    box.start[static_cast<size_t>(dim)] = range.first;
    box.sizes[static_cast<size_t>(dim)] = range.count;
    at += range.count;
    boxes.push_back(std::move(box));
  }
  return boxes;
}

TensorSlice TensorSlice::written_part() const {
  auto part = *this;
  if (written >= 0) part.ranges.resize(static_cast<size_t>(written));
  return part;
}

TensorSlice TensorSlice::of_rows(int64_t first, int64_t count) const {
  auto part = *this;
  if (dim > 0) {
    part.rows = {(rows.count < 0 ? 0 : rows.first) + first, count};
    return part;
  }
  part.ranges.clear();
  int64_t at = 0, kept = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto begin = std::max(first, at), end = std::min(first + count, at + ranges[i].count);
    if (begin < end) {
      part.ranges.push_back({ranges[i].first + begin - at, end - begin});
      if (written < 0 || static_cast<int64_t>(i) < written) ++kept;
    }
    at += ranges[i].count;
  }
  if (written >= 0) part.written = kept;
  return part;
}

namespace {

Tensor narrowed(const Tensor& all, const TensorSlice::Box& box) {
  auto view = all;
  for (size_t d = 0; d < box.start.size(); ++d) view = view.narrow(static_cast<int64_t>(d), box.start[d], box.sizes[d]);
  return view;
}

}  // namespace

Tensor TensorSlice::of(const Tensor& all) const {
  std::vector<Tensor> parts;
  for (const auto& box : boxes()) parts.push_back(narrowed(all, box));
  if (parts.empty()) return at::empty(sizes(), all.options());
  return parts.size() == 1 ? parts[0].contiguous().clone() : at::cat(parts, dim);
}

void TensorSlice::put(const Tensor& part, Tensor& all) const {
  for (const auto& box : boxes())
    narrowed(all, box).copy_(part.narrow(dim, box.at, box.sizes[static_cast<size_t>(dim)]));
}

const TensorSplit::Parameter* TensorSplit::find(const Tensor& parameter) const {
  for (const auto& known : parameters_)
    if (known.tensor.is_same(parameter)) return &known;
  return nullptr;
}

Tensor TensorSplit::whole(const Parameter& parameter, const Tensor& given) const {
  const at::NoGradGuard no_grad;
  if (!parameter.is_split()) return given.detach();
  auto all = at::zeros(parameter.slice.whole, given.options().requires_grad(false));
  auto part = given.detach().clone();
  // What several ranks have counts once.
  const auto& again = parameter.shared;
  if (!parameter.owns_shared) part.narrow(parameter.slice.dim, again.first, again.count).zero_();
  parameter.slice.put(part, all);
  ranks_->all_reduce(all);
  return all;
}

/// Plans first, then changes: what cannot be split changes nothing.
class TensorSplitter {
 public:
  TensorSplitter(const TensorParallelOptions& options, const TensorRanks& ranks, SplitValues values)
      : split_(std::make_shared<TensorSplit>(ranks, options)), ranks_(ranks), values_(values) {}

  std::shared_ptr<TensorSplit> run(torch::nn::Module& module, const std::function<void(const Tensor&)>& prepare) {
    auto& options = split_->options_;
    if (options.size == 0) options.size = ranks_->size();
    LEVIN_CHECK(options.size == ranks_->size(), "[tensor_parallel] size ", options.size, " on a group of ",
                ranks_->size(), " ranks");
    used_.resize(options.plan.size());
    for (const auto& rule : options.plan) rules_.push_back({rule.pattern, rule.role});
    if (options.plan.empty()) own_plans(module, "");
    LEVIN_CHECK(!rules_.empty(), "[tensor_parallel] no module of ", class_name(module),
                " says how it is split; give TensorParallelOptions::plan, or use a model of levin/models");
    walk(module, "", {});
    for (size_t i = 0; i < used_.size(); ++i)
      LEVIN_CHECK(used_[i], "[tensor_parallel] no module has a name as \"", options.plan[i].pattern, "\" of the plan");
    LEVIN_CHECK(!options.sequence_parallel || (began_ && !in_sequence_),
                "[tensor_parallel] sequence_parallel: the plan of ", class_name(module),
                " does not say where the sequence begins and ends to be split");
    const at::NoGradGuard no_grad;
    for (auto& parameter : split_->parameters_) {
      if (prepare) prepare(parameter.tensor);
      if (parameter.is_split()) cut(parameter);
    }
    for (const auto& change : changes_) change();
    return split_;
  }

 private:
  void own_plans(torch::nn::Module& module, const std::string& name) {
    const auto* part = dynamic_cast<TensorParallelPart*>(&module);
    if (part)
      for (const auto& rule : part->tensor_plan()) rules_.push_back({child_name(name, rule.pattern), rule.role});
    for (auto& child : detail::ModuleAccess::children(module)) own_plans(*child.value(), child_name(name, child.key()));
  }

  TensorRole role_of(const std::string& name, bool sequence) {
    for (size_t i = 0; i < rules_.size(); ++i) {
      if (is_sequence_role(rules_[i].role) != sequence) continue;
      if (::fnmatch(rules_[i].pattern.c_str(), name.c_str(), 0) != 0) continue;
      if (i < used_.size()) used_[i] = true;
      return rules_[i].role;
    }
    return TensorRole::kWhole;
  }

  void attach(torch::nn::Module& module, const std::string& name, std::shared_ptr<Interceptor> interceptor,
              Order order) {
    auto* unit = dynamic_cast<Unit*>(&module);
    LEVIN_CHECK(unit, "[tensor_parallel] \"", name, "\" is a ", class_name(module),
                ", whose calls cannot be intercepted; declare it with LEVIN_MODULE");
    LEVIN_CHECK(order != kRegionOrder || !unit->has_interceptor(order), "[tensor_parallel] \"", name,
                "\" is split over ranks already");
    changes_.push_back(
        [unit, interceptor = std::move(interceptor), order] { unit->attach(interceptor, order).keep(); });
  }

  void walk(torch::nn::Module& module, const std::string& name, Surroundings around) {
    auto* part = dynamic_cast<TensorParallelPart*>(&module);
    if (part && !part->tensor_plan().empty()) {
      around.model = part;
      changes_.push_back([part, ranks = ranks_] { part->take_ranks(ranks); });
    }
    const bool parallel = split_->options_.sequence_parallel;
    const auto sequence = parallel ? role_of(name, true) : TensorRole::kWhole;
    // One module may be both, where there is a single block.
    const bool ends = parallel && ends_sequence(name);
    if (sequence == TensorRole::kSequenceBegin) {
      began_ = in_sequence_ = true;
      attach(module, name, std::make_shared<detail::BeginSequence>(ranks_), kSequenceOrder);
      blocks_ = name.substr(0, name.rfind('.') + 1) + "*";
    }
    // Blocks beside the first one draw for their own tokens.
    if (in_sequence_ && is_block(name))
      attach(module, name, std::make_shared<detail::OwnRandom>(ranks_->rank()), kRandomOrder);
    const auto role = role_of(name, false);
    if (part && part->heads().heads > 0) take_heads(*part, name, around);
    treat(module, part, name, role, around);
    for (auto& child : detail::ModuleAccess::children(module))
      walk(*child.value(), child_name(name, child.key()), around);
    if (ends) {
      const bool is_norm = dynamic_cast<nn::ResidualNormImpl*>(&module) != nullptr;
      attach(module, name, std::make_shared<detail::EndSequence>(ranks_, is_norm), kSequenceOrder);
      in_sequence_ = false;
    }
  }

  bool is_block(const std::string& name) const {
    return ::fnmatch(blocks_.c_str(), name.c_str(), 0) == 0 && name.find('.', blocks_.size() - 1) == name.npos;
  }

  bool ends_sequence(const std::string& name) const {
    for (const auto& rule : rules_)
      if (rule.role == TensorRole::kSequenceEnd && ::fnmatch(rule.pattern.c_str(), name.c_str(), 0) == 0) return true;
    return false;
  }

  void take_heads(TensorParallelPart& part, const std::string& name, Surroundings& around) {
    around.heads = HeadShare::of(part.heads(), ranks_->size(), ranks_->rank(), name);
    changes_.push_back([&part, model = around.model, share = *around.heads, ranks = ranks_] {
      part.take_heads(share);
      part.take_ranks(ranks);
      if (model && model != &part) model->take_heads(share);
    });
  }

  void treat(torch::nn::Module& module, TensorParallelPart* part, const std::string& name, TensorRole role,
             Surroundings& around) {
    const bool begins_region =
        role == TensorRole::kRegion || ((role == TensorRole::kColumn || role == TensorRole::kQkv) && !around.region);
    if (begins_region) {
      around.region = std::make_shared<detail::TensorRegion>(ranks_, in_sequence_);
      attach(module, name, std::make_shared<detail::EnterRegion>(around.region, part), kRegionOrder);
    }
    switch (role) {
      case TensorRole::kWhole:
        LEVIN_CHECK(!in_sequence_ || !part || !part->has_width(), "[tensor_parallel] \"", name,
                    "\" has experts, whose load is that of whole sequences; with sequence_parallel the plan must say "
                    "kExperts of it");
        [[fallthrough]];
      case TensorRole::kRegion:
      case TensorRole::kSequenceBegin:
      case TensorRole::kSequenceEnd:
        return add_whole(module, name, around.region != nullptr || in_sequence_);
      case TensorRole::kColumn:
        return add_split(module, name, [&](const Tensor& p) {
          check_whole_heads(name, p.size(0), "rows", around);
          return slice_of(name, p, 0);
        });
      case TensorRole::kQkv:
        return add_qkv(module, name, around);
      case TensorRole::kRow:
      case TensorRole::kHeadRow:
        return add_row(module, part, name, role, around);
      case TensorRole::kExperts:
        return add_experts(module, part, name);
      case TensorRole::kVocabEmbedding:
      case TensorRole::kVocabHead:
        return add_vocab(module, part, name, role);
    }
  }

  void add_whole(torch::nn::Module& module, const std::string& name, bool sums_grad) {
    for (auto& item : detail::ModuleAccess::parameters(module))
      if (item.value().defined()) add(child_name(name, item.key()), item.value(), {}, sums_grad);
  }

  /// `slice(parameter)` of each parameter of the module itself.
  template <class F>
  void add_split(torch::nn::Module& module, const std::string& name, const F& slice) {
    check_layer(module, name);
    for (auto& item : detail::ModuleAccess::parameters(module))
      if (item.value().defined()) add(child_name(name, item.key()), item.value(), slice(item.value()), false);
  }

  void check_layer(const torch::nn::Module& module, const std::string& name) const {
    LEVIN_CHECK(!detail::ModuleAccess::buffers(module).contains("weight"), "[tensor_parallel] \"", name,
                "\" is quantized, which is not split; split first, or take no quantization");
    for (const auto& child : detail::ModuleAccess::children(module))
      LEVIN_CHECK(!child.key().starts_with("lora"), "[tensor_parallel] \"", name,
                  "\" has adapters, which are not split; merge_lora first");
  }

  TensorSlice slice_of(const std::string& name, const Tensor& parameter, int64_t dim) const {
    const auto size = parameter.size(dim);
    LEVIN_CHECK(size >= ranks_->size(), "[tensor_parallel] \"", name, "\" has ", size, dim == 0 ? " rows" : " columns",
                ", which ", ranks_->size(), " ranks cannot share: each needs one");
    return {dim, {Share::of(size, ranks_->size(), ranks_->rank())}, parameter.sizes().vec()};
  }

  /// Equal parts of the layers of an attention must be whole heads: take_heads told it how many it has.
  void check_whole_heads(const std::string& name, int64_t size, const char* what, const Surroundings& around) const {
    if (!around.heads) return;
    const auto& all = around.heads->all;
    for (const int64_t heads : {all.heads, all.kv_heads})
      LEVIN_CHECK(size != heads * all.width || heads % ranks_->size() == 0, "[tensor_parallel] \"", name, "\" has the ",
                  what, " of ", heads, " heads, which ", ranks_->size(),
                  " ranks do not share evenly; put queries, keys and values into one layer with the role kQkv, and say "
                  "kHeadRow of the layer behind attention, or take a number of ranks that divides ",
                  heads);
  }

  void add_qkv(torch::nn::Module& module, const std::string& name, const Surroundings& around) {
    LEVIN_CHECK(around.heads, "[tensor_parallel] \"", name,
                "\" is said to have queries, keys and values, but no attention around it tells its heads");
    const auto& [heads, keys, all] = *around.heads;
    const auto rows = [&](Share share, int64_t before) {
      return Share{(before + share.first) * all.width, share.count * all.width};
    };
    const std::vector<Share> ranges{rows(heads, 0), rows(keys, all.heads), rows(keys, all.heads + all.kv_heads)};
    add_split(module, name, [&](const Tensor& p) {
      LEVIN_CHECK(p.size(0) == (all.heads + 2 * all.kv_heads) * all.width, "[tensor_parallel] \"", name, "\" has ",
                  p.size(0), " rows, not those of ", all.heads, " + 2 x ", all.kv_heads, " heads of ", all.width);
      return TensorSlice{0, ranges, p.sizes().vec()};
    });
    if (all.kv_heads >= ranks_->size()) return;
    // Keys and values belong to the first of the ranks that have them.
    const bool owns = ranks_->rank() == 0 ||
                      HeadShare::of(all, ranks_->size(), ranks_->rank() - 1, name).kv_heads.first != keys.first;
    for (auto& item : detail::ModuleAccess::parameters(module))
      if (auto* known = added(item.value())) {
        known->shared = {ranges[0].count, ranges[1].count + ranges[2].count};
        known->owns_shared = owns;
        if (!owns) known->slice.written = 1;
      }
  }

  void add_row(torch::nn::Module& module, TensorParallelPart* part, const std::string& name, TensorRole role,
               const Surroundings& around) {
    check_layer(module, name);
    auto region = around.region ? around.region : std::make_shared<detail::TensorRegion>(ranks_, in_sequence_);
    Tensor* bias = part ? part->row_bias() : nullptr;
    if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&module)) bias = &linear->bias;
    if (bias && !bias->defined()) bias = nullptr;
    for (auto& item : detail::ModuleAccess::parameters(module)) {
      const auto& p = item.value();
      if (!p.defined()) continue;
      const auto full = child_name(name, item.key());
      if (p.dim() == 1) {
        LEVIN_CHECK(bias && bias->is_same(p), "[tensor_parallel] \"", full, "\" of a row layer would be added ",
                    ranks_->size(),
                    " times; a module that is not nn::Linear tells its bias by TensorParallelPart::row_bias");
        add(full, p, {}, region->sequence);  // added behind the sum, to whole results or to the rank's tokens
        continue;
      }
      if (role == TensorRole::kRow) {
        check_whole_heads(name, p.size(1), "columns", around);
        add(full, p, slice_of(name, p, 1), false);
        continue;
      }
      LEVIN_CHECK(around.heads && p.size(1) == around.heads->all.heads * around.heads->all.width,
                  "[tensor_parallel] \"", name, "\" does not have the columns of the heads around it");
      const auto width = around.heads->all.width;
      add(full, p, {1, {{around.heads->heads.first * width, around.heads->heads.count * width}}, p.sizes().vec()},
          false);
    }
    attach(module, name, std::make_shared<detail::LeaveRegion>(std::move(region), bias), kRegionOrder);
  }

  void add_experts(torch::nn::Module& module, TensorParallelPart* part, const std::string& name) {
    LEVIN_CHECK(part, "[tensor_parallel] \"", name, "\" is a ", class_name(module),
                ", which does not tell what of it is split (TensorParallelPart::split_dim)");
    for (auto& item : detail::ModuleAccess::parameters(module)) {
      if (!item.value().defined()) continue;
      const auto dim = part->split_dim(item.key());
      const auto full = child_name(name, item.key());
      // What is whole sees a part of the sequence.
      if (dim < 0)
        add(full, item.value(), {}, in_sequence_);
      else
        add(full, item.value(), slice_of(full, item.value(), dim), false);
    }
    changes_.push_back([part, ranks = ranks_, sequence = in_sequence_] { part->take_width(ranks, sequence); });
  }

  void add_vocab(torch::nn::Module& module, TensorParallelPart* part, const std::string& name, TensorRole role) {
    const auto* weight = detail::ModuleAccess::parameters(module).find("weight");
    LEVIN_CHECK(weight && weight->dim() == 2, "[tensor_parallel] \"", name, "\" has no table \"weight\" of tokens");
    const auto rows = weight->size(0);
    slice_of(name, *weight, 0);
    const auto share = VocabShare::of(rows, ranks_);
    for (auto& item : detail::ModuleAccess::parameters(module))
      if (item.value().defined())
        add(child_name(name, item.key()), item.value(), slice_of(name, item.value(), 0), false);
    if (role == TensorRole::kVocabEmbedding)
      return attach(module, name, std::make_shared<detail::SplitEmbedding>(share), kRegionOrder);
    LEVIN_CHECK(part, "[tensor_parallel] \"", name, "\" is a ", class_name(module),
                ", which does not know how to take a part of the vocabulary (TensorParallelPart::take_vocab)");
    changes_.push_back([part, shared = std::make_shared<const VocabShare>(share)] { part->take_vocab(shared); });
  }

  TensorSplit::Parameter* added(const Tensor& tensor) {
    const auto found = added_.find(tensor.unsafeGetTensorImpl());
    return found == added_.end() ? nullptr : &split_->parameters_[found->second];
  }

  void add(const std::string& name, const Tensor& tensor, TensorSlice slice, bool sums_grad) {
    if (const auto* before = added(tensor)) {
      LEVIN_CHECK(before->is_split() == !slice.ranges.empty() && before->slice.dim == slice.dim, "[tensor_parallel] \"",
                  before->name, "\" and \"", name, "\" are one tensor, and the plan splits them in two ways");
      return;
    }
    added_.emplace(tensor.unsafeGetTensorImpl(), split_->parameters_.size());
    split_->parameters_.push_back({name, tensor, std::move(slice), sums_grad});
  }

  void cut(TensorSplit::Parameter& parameter) {
    const auto& slice = parameter.slice;
    Tensor part;
    if (values_ == SplitValues::kRead) {
      part = at::empty(slice.sizes(), parameter.tensor.options().requires_grad(false));
    } else {
      if (is_deferred(parameter.tensor)) materialize(std::span(&parameter.tensor, 1));
      part = slice.of(parameter.tensor.detach());
    }
    parameter.tensor.set_data(part);
  }

  std::shared_ptr<TensorSplit> split_;
  TensorRanks ranks_;
  SplitValues values_;
  std::vector<TensorRule> rules_;
  std::vector<bool> used_;
  std::unordered_map<const c10::TensorImpl*, size_t> added_;
  std::vector<std::function<void()>> changes_;
  bool began_ = false, in_sequence_ = false;
  /// The pattern of blocks where the sequence is split.
  std::string blocks_;
};

std::shared_ptr<TensorSplit> split_tensors(torch::nn::Module& module, const TensorParallelOptions& options,
                                           const TensorRanks& ranks, SplitValues values,
                                           const std::function<void(const Tensor&)>& prepare) {
  return TensorSplitter(options, ranks, values).run(module, prepare);
}

bool has_part_of_sequence(const Unit& block) {
  return block.has_interceptor(kRandomOrder);
}

}  // namespace levin
