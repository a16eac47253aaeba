#include "levin/nn/context/attention.h"

#include <algorithm>
#include <limits>
#include <optional>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/dispatch.h"
#include "levin/core/error.h"
#include "levin/distributed/rotation.h"
#include "levin/distributed/single.h"
#include "levin/kernels/attention/attention_block.h"
#include "levin/nn/context/blocks.h"
#include "levin/nn/context/head_exchange.h"

namespace levin::nn {
namespace {

using kernels::AttentionBlock;
using kernels::AttentionBlockOptions;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// With the key of autocast in memory estimates.
const auto kAutocastKeys = c10::autocast_dispatch_keyset.add(levin::detail::kTopKey);

/// Scores of that many pairs of a query and a key of a head are in memory at once, where they are at all.
constexpr int64_t kPairs = int64_t{1} << 26;

at::ScalarType context_wide(const Tensor& x) {
  return at::promote_types(x.scalar_type(), at::kFloat);
}

/// One attention over the ranks: what forward and backward have in common.
class ContextPass {
 public:
  ContextPass(SharedContext share, ContextAttentionOptions options, int64_t length)
      : share_(std::move(share)), options_(std::move(options)), length_(length), most_(share_->layout().most(length)) {}

  /// Keys and values [B, t, H, D] as they travel: [2, B, most, H, D].
  Tensor packed(const Tensor& k, const Tensor& v) const {
    const auto both = at::stack({k, v});
    return both.size(2) == most_ ? both : at::constant_pad_nd(both, {0, 0, 0, 0, 0, most_ - both.size(2)});
  }

  /// Calls attend(owner, keys and values of it) for every rank, this one first. Those of the next are on their way
  /// meanwhile.
  template <class F>
  void each_owner(Tensor kv, const F& attend) const {
    const int size = share_->size(), rank = share_->rank();
    if (share_->options().rotate == ContextRotation::kAllGather) {
      const auto all = share_->ranks().all_gather(kv);
      for (int step = 0; step < size; ++step) {
        const int owner = (rank + size - step) % size;
        attend(owner, all[owner]);
      }
      return;
    }
    for (int step = 0; step < size; ++step) {
      std::optional<Rotation> next;
      if (step + 1 < size) next.emplace(share_->ranks(), kv);
      attend((rank + size - step) % size, kv);
      if (next) kv = next->wait();
    }
  }

  /// Calls attend(queries, keys, options) for what this rank's queries see of an owner's keys.
  template <class F>
  void each_block(int owner, const Tensor& q, const Tensor& k, const Tensor& v, const F& attend) const {
    const bool compares = options_.slopes.defined() || options_.texts.defined();
    for (const auto& block :
         context_blocks(share_->layout(), length_, share_->rank(), owner, options_.causal, options_.window)) {
      AttentionBlockOptions plain{.scale = options_.scale, .softcap = options_.softcap};
      plain.causal = block.kind == ContextBlock::Kind::kCausal;
      const auto one_q = q.narrow(2, block.queries.first, block.queries.count);
      const auto one_k = k.narrow(2, block.keys.first, block.keys.count);
      const auto one_v = v.narrow(2, block.keys.first, block.keys.count);
      if (!compares && block.kind != ContextBlock::Kind::kSome && kernels::is_fused_block(one_q, one_k, one_v, plain)) {
        attend(block.queries, block.keys, plain);
        continue;
      }
      // Scores are in memory: some queries at a time.
      const auto rows = std::max<int64_t>(1, kPairs / std::max<int64_t>(1, q.size(0) * q.size(1) * block.keys.count));
      const bool whole = rows >= block.queries.count;
      for (int64_t done = 0; done < block.queries.count; done += rows) {
        const Share queries{block.queries.first + done, std::min(rows, block.queries.count - done)};
        const bool masked = compares || block.kind == ContextBlock::Kind::kSome || (plain.causal && !whole);
        attend(queries, block.keys, masked ? compared(queries, owner, block.keys, q) : plain);
      }
    }
  }

  const ContextShare& share() const { return *share_; }
  int64_t most() const { return most_; }

 private:
  /// Positions in the sequence of some of a rank's tokens.
  Tensor positions(int rank, const Share& tokens, c10::Device device) const {
    std::vector<Tensor> parts;
    for (const auto& run : share_->layout().runs(length_, rank))
      parts.push_back(at::arange(run.first, run.first + run.count, at::kLong));
    return at::cat(parts).narrow(0, tokens.first, tokens.count).to(device);
  }

  AttentionBlockOptions compared(const Share& queries, int owner, const Share& keys, const Tensor& like) const {
    AttentionBlockOptions block{.scale = options_.scale, .softcap = options_.softcap};
    const auto query = positions(share_->rank(), queries, like.device()), key = positions(owner, keys, like.device());
    const auto row = query.unsqueeze(1), column = key.unsqueeze(0);
    Tensor seen;
    if (options_.causal) {
      seen = column <= row;
      if (options_.window > 0) seen = seen & (column > row - options_.window);
      seen = seen.unsqueeze(0).unsqueeze(0);
    }
    if (options_.texts.defined()) {
      const auto of_key = options_.texts.index_select(1, key).unsqueeze(1).unsqueeze(1);  // [B, 1, 1, Tk]
      if (options_.causal) {
        const auto of_query = options_.texts.index_select(1, query).unsqueeze(1).unsqueeze(3);
        const auto same = ((of_key == of_query) | (of_query == 0)) & (of_key != 0);
        seen = (seen & same) | (row == column);
      } else {
        seen = of_key != 0;
      }
    }
    block.seen = seen;
    if (options_.slopes.defined()) {
      Tensor distance = column - row;  // [Tq, Tk]
      if (options_.places.defined())
        distance = options_.places.index_select(1, key).unsqueeze(1) -
                   options_.places.index_select(1, query).unsqueeze(2);  // [B, Tq, Tk]
      else
        distance = distance.unsqueeze(0);
      block.added = options_.slopes.view({1, -1, 1, 1}) * distance.unsqueeze(1).to(at::kFloat);
    }
    return block;
  }

  SharedContext share_;
  ContextAttentionOptions options_;
  int64_t length_, most_;
};

/// Keys or values of packed ones: [B, Hkv, t, D].
Tensor context_heads(const Tensor& packed, int64_t part) {
  return packed[part].transpose(1, 2);
}

/// saved_data takes no pointers: a holder that torch counts does.
struct PassHolder : torch::CustomClassHolder {
  explicit PassHolder(ContextPass of) : pass(std::move(of)) {}
  ContextPass pass;
};

/// Gradients of keys and values [2, B, most, H, D] on their way to the ranks whose they are.
class GradientsHome {
 public:
  GradientsHome(const ContextPass& pass, const Tensor& kv)
      : pass_(pass), own_(at::zeros(kv.sizes(), kv.options().dtype(context_wide(kv)))) {
    if (gathers() && pass.share().size() > 1) {
      auto sizes = kv.sizes().vec();
      sizes.insert(sizes.begin(), pass.share().size());
      all_ = at::zeros(sizes, own_.options());
    }
  }

  /// Where those of an owner are to be added.
  Tensor begin(int owner) {
    if (all_.defined()) return all_[owner];
    return owner == pass_.share().rank() ? own_ : (fresh_ = at::zeros_like(own_));
  }
  /// They are complete as far as this rank goes.
  void end(int owner) {
    if (all_.defined() || owner == pass_.share().rank()) return;
    // What the ranks before have added to them.
    if (moving_) fresh_ += moving_->wait();
    moving_.emplace(pass_.share().ranks(), std::exchange(fresh_, {}));
  }
  Tensor finish() {
    if (all_.defined()) return pass_.share().ranks().reduce_scatter(all_.flatten(0, 1)).view(own_.sizes());
    if (moving_) own_ += moving_->wait();
    return own_;
  }

 private:
  bool gathers() const { return pass_.share().options().rotate == ContextRotation::kAllGather; }

  const ContextPass& pass_;
  Tensor own_, fresh_, all_;
  std::optional<Rotation> moving_;
};

struct ContextAttention : torch::autograd::Function<ContextAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const ContextPass& pass) {
    const c10::impl::ExcludeDispatchKeyGuard in_float(kAutocastKeys);
    const auto queries = q.transpose(1, 2);  // [B, H, t, D]
    const auto wide = q.options().dtype(context_wide(q));
    auto out = at::zeros({q.size(0), q.size(1), q.size(2), q.size(3)}, wide).transpose(1, 2);
    auto sums = at::full({q.size(0), q.size(2), q.size(1)}, -std::numeric_limits<float>::infinity(), wide);
    Tensor seed, offset;
    pass.each_owner(pass.packed(k, v), [&](int owner, const Tensor& kv) {
      const auto keys = context_heads(kv, 0), values = context_heads(kv, 1);
      pass.each_block(owner, queries, keys, values,
                      [&](const Share& rows, const Share& columns, const AttentionBlockOptions& options) {
                        const auto block = kernels::attention_block(
                            queries.narrow(2, rows.first, rows.count), keys.narrow(2, columns.first, columns.count),
                            values.narrow(2, columns.first, columns.count), options);
                        kernels::merge_attention(out.narrow(2, rows.first, rows.count),
                                                 sums.narrow(2, rows.first, rows.count), block);
                        if (block.seed.defined()) seed = block.seed, offset = block.offset;
                      });
    });
    const auto result = out.transpose(1, 2).to(q.scalar_type());
    context->save_for_backward({q, k, v, result, sums, seed, offset});
    context->saved_data["pass"] = c10::IValue::make_capsule(c10::make_intrusive<PassHolder>(pass));
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    LEVIN_CHECK(!at::GradMode::is_enabled(),
                "[context_parallel] the gradient of attention over ranks cannot be differentiated");
    const c10::impl::ExcludeDispatchKeyGuard in_float(kAutocastKeys);
    const auto saved = context->get_saved_variables();
    const auto holder = c10::static_intrusive_pointer_cast<PassHolder>(context->saved_data["pass"].toCapsule());
    const auto& pass = holder->pass;
    const auto queries = saved[0].transpose(1, 2), out = saved[3].transpose(1, 2);
    const auto grad = grads[0].contiguous().transpose(1, 2);
    auto dq = at::zeros(saved[0].sizes(), saved[0].options().dtype(context_wide(saved[0])));
    const auto kv = pass.packed(saved[1], saved[2]);
    GradientsHome home(pass, kv);
    pass.each_owner(kv, [&](int owner, const Tensor& of_owner) {
      const auto keys = context_heads(of_owner, 0), values = context_heads(of_owner, 1);
      const auto sum = home.begin(owner);
      pass.each_block(
          owner, queries, keys, values,
          [&](const Share& rows, const Share& columns, const AttentionBlockOptions& options) {
            const auto of_rows = [&](const Tensor& x) { return x.narrow(2, rows.first, rows.count); };
            const auto of_columns = [&](const Tensor& x) { return x.narrow(2, columns.first, columns.count); };
            const auto part =
                kernels::attention_block_backward(of_rows(grad), of_rows(queries), of_columns(keys), of_columns(values),
                                                  {of_rows(out), of_rows(saved[4]), saved[5], saved[6]}, options);
            of_rows(dq.transpose(1, 2)).add_(part.q);
            of_columns(context_heads(sum, 0)).add_(part.k);
            of_columns(context_heads(sum, 1)).add_(part.v);
          });
      home.end(owner);
    });
    const auto of_kv = home.finish().narrow(2, 0, saved[1].size(1));
    return {dq.to(saved[0].scalar_type()), of_kv[0].to(saved[1].scalar_type()), of_kv[1].to(saved[2].scalar_type()),
            Tensor()};
  }
};

/// Over tokens of this rank, or with all_to_all over its heads of the whole sequence.
Tensor attend_own(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length, ContextAttentionOptions options,
                  const SharedContext& share) {
  // Values are kept for backward: alone, where queries and keys are not of the same product any more.
  return ContextAttention::apply(q, k, v.is_alias_of(q) ? v : v.contiguous(),
                                 ContextPass(share, std::move(options), length));
}

Tensor attend_by_heads(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                       ContextAttentionOptions options, const SharedContext& share) {
  const int64_t n = share->size(), heads = q.size(2), kv_heads = k.size(2);
  LEVIN_CHECK(heads % n == 0 && kv_heads % n == 0, "[context_parallel] rotate kAllToAll gives each of ", n,
              " ranks some heads, and ", heads, " heads, ", kv_heads, " of keys, do not divide; use kRing");
  if (options.slopes.defined()) options.slopes = options.slopes.narrow(0, share->rank() * (heads / n), heads / n);
  // One after the other: ranks must exchange in the same order.
  const auto all_q = heads_of_sequence(q, length, share);
  const auto all_k = heads_of_sequence(k, length, share);
  const auto all_v = heads_of_sequence(v, length, share);
  const auto alone = std::make_shared<const ContextShare>(std::make_shared<SingleCollective>(),
                                                          ContextParallelOptions{.size = 1}, /*balanced=*/false);
  return tokens_of_heads(attend_own(all_q, all_k, all_v, length, options, alone), share);
}

}  // namespace

Tensor context_attention(const Tensor& q, const Tensor& k, const Tensor& v, int64_t length,
                         const ContextAttentionOptions& options, const SharedContext& share) {
  LEVIN_CHECK(q.dim() == 4 && k.dim() == 4 && q.size(1) == share->layout().count(length, share->rank()),
              "[context_parallel] queries ", q.sizes(), " are not this rank's of ", length, " tokens");
  // Under autocast a norm of heads may have left float32; values come from a product.
  const auto dtype = v.scalar_type();
  const bool by_heads = share->options().rotate == ContextRotation::kAllToAll;
  return (by_heads ? attend_by_heads : attend_own)(q.to(dtype), k.to(dtype), v, length, options, share).flatten(2, 3);
}

}  // namespace levin::nn
