#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "levin/compile/memory.h"
#include "levin/compile/optimize.h"
#include "levin/compile/patterns/match.h"
#include "levin/compile/patterns/patterns.h"
#include "levin/core/error.h"
#include "levin/kernels/attention/causal_attention_detail.h"

namespace levin::compile {
namespace {

using levin::detail::concat;

struct AttentionNumbers {
  bool causal = false;
  double scale = 1;
};

/// Flash attention on tensors [B, H, T, D] of any strides; sums [B, H, T].
class AttentionCall final : public Call {
 public:
  explicit AttentionCall(const AttentionNumbers& numbers) : numbers_(numbers) {}
  std::string name() const override { return numbers_.causal ? "causal_attention" : "attention"; }
  void run(std::span<const Tensor> reads, std::span<const Tensor> writes) override {
    const auto &q = reads[0], &k = reads[1], &v = reads[2];
    if (q.is_cpu()) {
      const auto [out, sums] =
          at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, numbers_.causal, {}, numbers_.scale);
      writes[0].copy_(out);
      writes[1].copy_(sums);
      return;
    }
    const auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0, numbers_.causal, false, numbers_.scale);
    writes[0].copy_(std::get<0>(result));
    writes[1].copy_(std::get<1>(result));
  }

 private:
  AttentionNumbers numbers_;
};

class AttentionBackwardCall final : public Call {
 public:
  explicit AttentionBackwardCall(const AttentionNumbers& numbers) : numbers_(numbers) {}
  std::string name() const override { return numbers_.causal ? "causal_attention_backward" : "attention_backward"; }
  /// grad, q, k, v, out, sums to the gradients of q, k, v.
  void run(std::span<const Tensor> reads, std::span<const Tensor> writes) override {
    const auto &grad = reads[0], &q = reads[1], &k = reads[2], &v = reads[3], &out = reads[4], &sums = reads[5];
    std::tuple<Tensor, Tensor, Tensor> grads;
    if (q.is_cpu()) {
      grads = at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, sums, 0, numbers_.causal, {},
                                                                       numbers_.scale);
    } else {
      const auto none = at::empty({2}, q.options().dtype(at::kLong));
      grads =
          at::_scaled_dot_product_flash_attention_backward(grad, q, k, v, out, sums, Tensor(), Tensor(), q.size(2),
                                                           k.size(2), 0, numbers_.causal, none, none, numbers_.scale);
    }
    writes[0].copy_(std::get<0>(grads));
    writes[1].copy_(std::get<1>(grads));
    writes[2].copy_(std::get<2>(grads));
  }

 private:
  AttentionNumbers numbers_;
};

/// One attention in the graph. Tensors are [B, H, T, D].
struct Attention {
  View q, k, v, grad;
  AttentionNumbers numbers;
  int32_t forward = -1, first_backward = -1;
  /// Products whose results are the output and the gradients, and as what they are written.
  int32_t out = -1, dq = -1, dk = -1, dv = -1;
  View out_view, dq_view, dk_view, dv_view;
  std::set<StorageId> decided_by;
};

class AttentionPattern {
 public:
  explicit AttentionPattern(const PatternContext& context)
      : context_(context), graph_(context.graph), index_(graph_), match_(graph_, index_) {}

  std::optional<Attention> find(int32_t softmax) {
    Attention found;
    const auto& node = match_.node(softmax);
    if (!node.is("aten::_softmax") || !is_last(node)) return std::nullopt;
    if (!go_up(node.reads[0], found)) return std::nullopt;
    if (!go_down(node, found)) return std::nullopt;
    return found;
  }

  int applied = 0, with_packed = 0;
  void apply(const Attention& found);
  /// Takes away what was replaced.
  void finish();

 private:
  struct Readers {
    std::vector<int32_t> products, transposed, backward, others;
  };

  static bool is_last(const Node& node) {
    const auto dim = Match::number(node, "dim");
    const auto last = node.writes[0].dim() - 1;
    return dim && (*dim == -1 || *dim == static_cast<double>(last));
  }

  /// From the scores that softmax takes to the product of queries and keys.
  bool go_up(View scores, Attention& found) {
    View mask;
    bool is_masked = false;
    for (int steps = 0; steps < 12; ++steps) {
      const auto made = match_.whole_maker(scores);
      if (made < 0 || !is_only_read_once(scores)) return false;
      const auto& node = match_.node(made);
      if (node.is("aten::bmm")) {
        found.numbers.causal = false;
        if (is_masked && !is_causal(mask, found)) return false;
        return product(node, found);
      }
      if (node.is("aten::_to_copy") || node.is("aten::clone")) {
        if (!is_float(node)) return false;
      } else if (const auto factor = factor_of(node)) {
        found.numbers.scale *= *factor;
      } else if (node.is("aten::masked_fill.Scalar") && !is_masked) {
        const auto value = Match::number(node, "value");
        if (!value || !(*value <= -1e4)) return false;
        mask = *node.tensor("mask");
        is_masked = true;
      } else {
        return false;
      }
      scores = node.reads[0];
      if (!is_same_shape(node, scores)) return false;
    }
    return false;
  }

  static bool is_same_shape(const Node& node, const View& read) { return read.sizes == node.writes[0].sizes; }
  static bool is_float(const Node& node) {
    return at::isFloatingType(node.reads[0].dtype) && at::isFloatingType(node.writes[0].dtype);
  }
  static std::optional<double> factor_of(const Node& node) {
    if (node.is("aten::mul.Scalar") || node.is("aten::mul.Tensor")) return Match::number(node, "other");
    if (node.is("aten::div.Scalar") || node.is("aten::div.Tensor")) {
      const auto by = Match::number(node, "other");
      return by ? std::optional(1 / *by) : std::nullopt;
    }
    return std::nullopt;
  }
  bool is_only_read_once(const View& view) const { return index_.readers(view).size() == 1; }

  /// True where a mask hides what comes after a position, and nothing else.
  bool is_causal(const View& mask, Attention& found) {
    if (mask.dtype != at::kBool || mask.dim() < 2) return false;
    const auto rows = mask.sizes[mask.sizes.size() - 2], columns = mask.sizes.back();
    if (rows != columns || mask.numel() != rows * columns) return false;
    const auto known = std::ranges::find_if(
        masks_, [&](const auto& each) { return each.first.same_place(mask) && each.first.version == mask.version; });
    if (known == masks_.end()) {
      std::set<StorageId> from;
      const auto bytes = constant_of(graph_, index_, mask, context_.changing, from);
      const bool is =
          bytes && at::equal(bytes->reshape({rows, columns}), at::ones({rows, columns}, bytes->options()).triu(1));
      masks_.emplace_back(mask, is ? std::optional(from) : std::nullopt);
      return is_causal(mask, found);
    }
    if (!known->second) return false;
    found.decided_by = *known->second;
    found.numbers.causal = true;
    return true;
  }

  /// Queries and keys from their product [BH, T, S].
  bool product(const Node& node, Attention& found) {
    const auto q = heads_of(node.reads[0]), k = heads_of(node.reads[1]);
    if (!q || !k) return false;
    found.q = *q;
    found.k = swapped(*k);
    return found.q.sizes[3] == found.k.sizes[3] && (!found.numbers.causal || found.q.sizes[2] == found.k.sizes[2]);
  }

  static View swapped(View view) {
    std::swap(view.sizes[2], view.sizes[3]);
    std::swap(view.strides[2], view.strides[3]);
    return view;
  }

  /// A factor of a batched product, [BH, M, N], as [B, H, M, N] of what it was copied from.
  std::optional<View> heads_of(const View& factor) const {
    const auto made = match_.maker(factor);
    if (made >= 0) {
      const auto& node = match_.node(made);
      if (node.is("aten::clone") && node.writes[0].dim() == 4 && node.writes[0].is_contiguous() &&
          node.reads[0].sizes == node.writes[0].sizes && match_.stays(node.reads[0]) && factor.offset == 0) {
        const auto& s = node.writes[0].sizes;
        const bool batch = factor.sizes[0] == s[0] * s[1] && factor.strides[0] == s[2] * s[3];
        if (batch && factor.sizes[1] == s[2] && factor.sizes[2] == s[3] && factor.is_contiguous()) return node.reads[0];
        if (batch && factor.sizes[1] == s[3] && factor.sizes[2] == s[2] && factor.strides[1] == 1 &&
            factor.strides[2] == s[3])
          return swapped(node.reads[0]);
      }
    }
    if (!match_.stays(factor)) return std::nullopt;
    auto view = factor;
    view.sizes.insert(view.sizes.begin() + 1, 1);
    view.strides.insert(view.strides.begin() + 1, 0);
    return view;
  }

  /// Who reads a value, and casts of it.
  bool readers_of(const View& value, Readers& readers, int depth = 0) const {
    for (const auto place : index_.readers(value)) {
      const auto& node = match_.node(place);
      if ((node.is("aten::_to_copy") || node.is("aten::clone")) && depth < 3 && node.writes[0].is_contiguous() &&
          is_float(node) && Match::is_whole(node.reads[0], value)) {
        if (match_.maker(node.writes[0]) != place || !readers_of(node.writes[0], readers, depth + 1)) return false;
      } else if (node.is("aten::bmm")) {
        const auto& left = node.reads[0];
        if (left.storage != value.storage || node.reads[1].storage == value.storage) {
          // The gradient of keys, where the value is on the right.
          readers.others.push_back(place);
          continue;
        }
        const bool straight = left.is_contiguous() && left.numel() == value.numel();
        (straight ? readers.products : readers.transposed).push_back(place);
      } else if (node.is("aten::_softmax_backward_data") && node.tensor("output")->storage == value.storage &&
                 node.tensor("grad_output")->storage != value.storage) {
        readers.backward.push_back(place);
      } else {
        return false;
      }
    }
    return true;
  }

  bool go_down(const Node& softmax, Attention& found) {
    const auto& weights = softmax.writes[0];
    if (!index_.is_inner(weights.storage) || !weights.is_contiguous()) return false;
    Readers readers;
    if (!readers_of(weights, readers) || readers.products.size() != 1 || !readers.others.empty()) return false;
    found.out = found.forward = readers.products[0];
    const auto& product = match_.node(found.out);
    const auto v = heads_of(product.reads[1]);
    if (!v || !result_of(product, found.q, found.out_view)) return false;
    found.v = *v;
    if (readers.transposed.empty() && readers.backward.empty()) return fits(found);
    if (readers.transposed.size() != 1 || readers.backward.size() != 1) return false;
    return backward(readers.transposed[0], readers.backward[0], found) && fits(found);
  }

  /// The result of a product [BH, M, N] as [B, H, M, N]; `like` has B and H.
  bool result_of(const Node& product, const View& like, View& result) const {
    const auto& written = product.writes[0];
    if (!index_.is_inner(written.storage) || !written.is_contiguous() || written.dim() != 3) return false;
    if (written.sizes[0] != like.sizes[0] * like.sizes[1]) return false;
    result = written;
    result.sizes = {like.sizes[0], like.sizes[1], written.sizes[1], written.sizes[2]};
    const auto size = written.sizes[1] * written.sizes[2];
    result.strides = {like.sizes[1] * size, size, written.sizes[2], 1};
    return true;
  }

  bool backward(int32_t dv, int32_t of_softmax, Attention& found) {
    found.dv = dv;
    const auto& values = match_.node(dv);
    const auto grad = heads_of(values.reads[1]);
    if (!grad || !result_of(values, found.q, found.dv_view)) return false;
    found.grad = *grad;
    // The gradient of the weights is the product of that of the result and the values.
    View weights = *match_.node(of_softmax).tensor("grad_output");
    for (int steps = 0;; ++steps) {
      const auto made = match_.whole_maker(weights);
      if (made < 0 || steps > 3 || !is_only_read_once(weights)) return false;
      const auto& node = match_.node(made);
      if (node.is("aten::_to_copy") || node.is("aten::clone")) {
        weights = node.reads[0];
        continue;
      }
      if (!node.is("aten::bmm")) return false;
      const auto again = heads_of(node.reads[0]), v = heads_of(node.reads[1]);
      if (!again || !v || !(*again == found.grad) || !(swapped(*v) == found.v)) return false;
      break;
    }
    // From the gradient of the scores to those of queries and keys.
    double scale = 1;
    View scores = match_.node(of_softmax).writes[0];
    for (int steps = 0; steps < 12; ++steps) {
      if (!index_.is_inner(scores.storage)) return false;
      const auto& readers = index_.readers(scores);
      if (readers.size() == 2) return scale_fits(scale, found) && gradients(scores, readers, found);
      if (readers.size() != 1) return false;
      const auto& node = match_.node(readers[0]);
      if (node.writes.size() != 1 || !node.op || node.reads.empty() || !Match::is_whole(node.reads[0], scores))
        return false;
      if (const auto factor = factor_of(node)) {
        scale *= *factor;
      } else if (node.is("aten::masked_fill.Scalar")) {
        if (Match::number(node, "value") != 0.0) return false;
      } else if (!((node.is("aten::_to_copy") || node.is("aten::clone")) && is_float(node))) {
        return false;
      }
      scores = node.writes[0];
    }
    return false;
  }
  static bool scale_fits(double scale, const Attention& found) {
    return std::abs(scale - found.numbers.scale) <= 1e-6 * std::abs(scale);
  }

  bool gradients(const View& scores, const std::vector<int32_t>& readers, Attention& found) {
    for (const auto place : readers) {
      const auto& node = match_.node(place);
      if (!node.is("aten::bmm")) return false;
      const auto &left = node.reads[0], &right = node.reads[1];
      if (left.storage == scores.storage && Match::is_whole(left, scores)) {
        const auto k = heads_of(right);
        if (!k || !(*k == found.k) || !result_of(node, found.q, found.dq_view)) return false;
        found.dq = place;
      } else if (left.storage == scores.storage) {
        const auto q = heads_of(right);
        if (!q || !(*q == found.q) || !result_of(node, found.q, found.dk_view)) return false;
        found.dk = place;
      } else if (Match::is_whole(right, scores)) {
        const auto q = heads_of(left);
        if (!q || !(swapped(*q) == found.q) || !result_of(node, found.q, found.dk_view)) return false;
        found.dk_view = swapped(found.dk_view);
        found.dk = place;
      } else {
        return false;
      }
    }
    found.first_backward = std::min({found.dq, found.dk, found.dv});
    return found.dq >= 0 && found.dk >= 0;
  }

  bool fits(const Attention& found) const {
    const auto same = [&](const View& a, const View& b) {
      return a.dtype == b.dtype && a.sizes[0] == b.sizes[0] && a.sizes[1] == b.sizes[1] && a.sizes[3] == b.sizes[3];
    };
    const auto device = graph_.device_of(found.q);
    const bool kind = device.is_cpu() || at::isReducedFloatingType(found.q.dtype);
    const bool last = found.q.strides[3] == 1 && found.k.strides[3] == 1 && found.v.strides[3] == 1;
    return kind && last && same(found.q, found.k) && same(found.k, found.v) && found.k.sizes[2] == found.v.sizes[2] &&
           found.q.sizes[3] <= 256 && found.q.sizes[3] % 8 == 0 && found.q.numel() > 0;
  }

  std::optional<View> packed_of(const View& q, const View& k, const View& v) const;
  bool apply_packed(const Attention& found);

  const PatternContext& context_;
  Graph& graph_;
  GraphIndex index_;
  Match match_;
  std::vector<std::pair<View, std::optional<std::set<StorageId>>>> masks_;
  std::set<int32_t> gone_;
};

void set_call(Node& node, std::shared_ptr<Call> call, std::vector<View> reads, std::vector<View> writes) {
  node.op.reset();
  node.args.clear();
  node.results.clear();
  node.call = std::move(call);
  node.reads = std::move(reads);
  node.writes = std::move(writes);
}

/// q, k and v beside each other in one tensor [B, T, 3, H, D], where they are.
std::optional<View> AttentionPattern::packed_of(const View& q, const View& k, const View& v) const {
  const auto heads = q.sizes[1], tokens = q.sizes[2], size = q.sizes[3];
  const std::vector<int64_t> strides{tokens * 3 * heads * size, size, 3 * heads * size, 1};
  if (q.storage != k.storage || k.storage != v.storage || q.version != k.version || k.version != v.version) return {};
  if (q.sizes != k.sizes || k.sizes != v.sizes) return {};
  for (const auto* each : {&q, &k, &v})
    for (size_t d = 0; d < 4; ++d)
      if (each->sizes[d] != 1 && each->strides[d] != strides[d]) return {};
  if (k.offset - q.offset != heads * size || v.offset - k.offset != heads * size) return {};
  auto packed = q;
  packed.sizes = {q.sizes[0], tokens, 3, heads, size};
  packed.strides = {tokens * 3 * heads * size, 3 * heads * size, heads * size, size, 1};
  return packed;
}

/// By Levin's kernels, which read and write packed tensors as they are. The gradients must be put beside each other by
/// one `cat` already.
bool AttentionPattern::apply_packed(const Attention& found) {
  const auto packed = packed_of(found.q, found.k, found.v);
  const auto device = graph_.device_of(found.q);
  const auto B = found.q.sizes[0], H = found.q.sizes[1], T = found.q.sizes[2], D = found.q.sizes[3];
  if (!packed || !device.is_cuda() || !found.numbers.causal || found.dv < 0) return false;
  if (std::abs(found.numbers.scale - 1 / std::sqrt(static_cast<double>(D))) > 1e-6) return false;
  if (!kernels::detail::causal_attention_fits(tensor_over(new_memory(device, 0), *packed), true, 0)) return false;

  // The gradient comes as [B, T, H, D].
  auto grad = found.grad;
  grad.sizes = {B, T, H, D};
  grad.strides = {found.grad.strides[0], found.grad.strides[2], found.grad.strides[1], found.grad.strides[3]};
  if (!grad.is_contiguous()) return false;

  // cat of the three, each as [B, T, H * D].
  const auto through_copies = [&](int32_t product) -> std::pair<int32_t, View> {
    View value = match_.node(product).writes[0];
    for (int steps = 0; steps < 3; ++steps) {
      const auto& readers = index_.readers(value);
      if (readers.size() != 1 || !index_.is_inner(value.storage)) return {-1, {}};
      const auto& node = match_.node(readers[0]);
      if (node.is("aten::cat")) return {readers[0], value};
      if (!node.is("aten::clone")) return {-1, {}};
      value = node.writes[0];
    }
    return {-1, {}};
  };
  const auto [cat, dq] = through_copies(found.dq);
  const auto [cat_k, dk] = through_copies(found.dk);
  const auto [cat_v, dv] = through_copies(found.dv);
  if (cat < 0 || cat != cat_k || cat != cat_v) return false;
  auto& whole = graph_.nodes[static_cast<size_t>(cat)];
  if (whole.reads.size() != 3 || whole.reads[0].storage != dq.storage || whole.reads[1].storage != dk.storage ||
      whole.reads[2].storage != dv.storage)
    return false;
  const auto& result = whole.writes[0];
  if (!index_.is_inner(result.storage) || !result.is_contiguous() || result.numel() != B * T * 3 * H * D ||
      result.sizes.back() != 3 * H * D ||
      Match::number(whole, "dim").value_or(-2) != static_cast<double>(result.dim() - 1))
    return false;
  // Each part is (batch, token, head, number) in that order.
  const auto is_part = [&](const View& part, const View& original, bool is_keys) {
    if (part.numel() != B * T * H * D || part.sizes.back() != H * D) return false;
    if (part.storage != original.storage) {  // a copy
      const auto copied = match_.maker(part);
      if (copied < 0) return false;
      const auto& copy = match_.node(copied);
      if (!copy.is("aten::clone") || !copy.writes[0].is_contiguous() || !part.is_contiguous()) return false;
      const auto& read = copy.reads[0];
      if (read.storage != original.storage || read.dim() != 4) return false;
      const auto expected =
          is_keys ? std::vector<int64_t>{H * T * D, 1, T * D, T} : std::vector<int64_t>{H * T * D, D, T * D, 1};
      if (read.sizes != std::vector<int64_t>{B, T, H, D}) return false;
      for (size_t d = 0; d < 4; ++d)
        if (read.sizes[d] != 1 && read.strides[d] != expected[d]) return false;
      return true;
    }
    // Keys lie as [B, H * D, T]: no copy is needed for [B, T, H * D].
    return is_keys && part.sizes == std::vector<int64_t>{B, T, H * D} && part.strides[1] == 1 && part.strides[2] == T &&
           (B == 1 || part.strides[0] == H * D * T);
  };
  const bool keys_turned = found.dk_view.strides[3] != 1;
  if (!is_part(whole.reads[0], match_.node(found.dq).writes[0], false) ||
      !is_part(whole.reads[1], match_.node(found.dk).writes[0], keys_turned) ||
      !is_part(whole.reads[2], match_.node(found.dv).writes[0], false))
    return false;

  // The result is written as [B, T, H, D], and read as what it was.
  const auto out_storage = found.out_view.storage;
  const Relayout move{.strides = {{H * T * D, T * H * D}, {T * D, D}, {D, H * D}, {1, 1}}};
  for (const auto place : index_.readers(out_storage, 1)) {
    auto& node = graph_.nodes[static_cast<size_t>(place)];
    for (const auto& read : node.reads)
      if (read.storage == out_storage && (!move(read) || read.dim() != 4)) return false;
  }
  for (const auto place : index_.readers(out_storage, 1)) {
    auto& node = graph_.nodes[static_cast<size_t>(place)];
    const auto change = [&](View& view) {
      if (view.storage == out_storage) view = *move(view);
    };
    for (auto& view : node.reads) change(view);
    for (auto& arg : node.args) {
      if (auto* view = std::get_if<View>(&arg)) change(*view);
      if (auto* list = std::get_if<std::vector<std::optional<View>>>(&arg))
        for (auto& view : *list)
          if (view) change(*view);
    }
  }
  View out = match_.node(found.out).writes[0];
  out.sizes = {B, T, H, D};
  out.strides = {T * H * D, H * D, D, 1};
  auto sums = graph_.add_tensor({B, H, T}, at::kFloat, device);
  sums.version = 1;

  auto& dispatcher = c10::Dispatcher::singleton();
  auto& forward = graph_.nodes[static_cast<size_t>(found.forward)];
  forward.op = dispatcher.findSchemaOrThrow(kernels::detail::causal_attention_operator().c_str(), "");
  forward.args = {*packed};
  forward.reads = {*packed};
  forward.writes = {out, sums};
  forward.results = {0, 1};
  auto& backward = graph_.nodes[static_cast<size_t>(found.first_backward)];
  backward.op = dispatcher.findSchemaOrThrow((kernels::detail::causal_attention_operator() + "_backward").c_str(), "");
  backward.args = {grad, *packed, out, sums, c10::IValue()};
  backward.reads = {grad, *packed, out, sums};
  View gradient = result;
  gradient.sizes = {B, T, 3, H, D};
  gradient.strides = {T * 3 * H * D, 3 * H * D, H * D, D, 1};
  backward.writes = {gradient};
  backward.results = {0, -1};
  // Nobody writes it any more but the operator.
  gone_.insert(cat);
  for (const auto place : {found.dq, found.dk, found.dv})
    if (place != found.first_backward) gone_.insert(place);
  return true;
}

void AttentionPattern::apply(const Attention& found) {
  for (const auto storage : found.decided_by) graph_.decided_by.push_back(storage);
  graph_.has_other_bits = true;
  ++applied;
  if (apply_packed(found)) {
    ++with_packed;
    return;
  }
  auto sums =
      graph_.add_tensor({found.q.sizes[0], found.q.sizes[1], found.q.sizes[2]}, at::kFloat, graph_.device_of(found.q));
  set_call(graph_.nodes[static_cast<size_t>(found.forward)], std::make_shared<AttentionCall>(found.numbers),
           {found.q, found.k, found.v}, {found.out_view, sums});
  if (found.dv < 0) return;
  set_call(
      graph_.nodes[static_cast<size_t>(found.first_backward)], std::make_shared<AttentionBackwardCall>(found.numbers),
      {found.grad, found.q, found.k, found.v, found.out_view, sums}, {found.dq_view, found.dk_view, found.dv_view});
  for (const auto place : {found.dq, found.dk, found.dv})
    if (place != found.first_backward) gone_.insert(place);
}

void AttentionPattern::finish() {
  std::vector<bool> dead(graph_.nodes.size(), false);
  for (const auto place : gone_) dead[static_cast<size_t>(place)] = true;
  graph_.erase(dead);
}

}  // namespace

std::string fuse_attention(const PatternContext& context) {
  AttentionPattern pattern(context);
  std::vector<Attention> all;
  for (size_t i = 0; i < context.graph.nodes.size(); ++i)
    if (auto found = pattern.find(static_cast<int32_t>(i))) all.push_back(std::move(*found));
  if (all.empty()) return {};
  for (const auto& found : all) pattern.apply(found);
  pattern.finish();
  return levin::detail::concat("attention by hand: ", pattern.applied, " times",
                               pattern.with_packed > 0 ? ", by packed kernels" : "");
}

}  // namespace levin::compile
