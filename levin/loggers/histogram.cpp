#include "levin/loggers/histogram.h"

#include <algorithm>

namespace levin::detail {

using at::Tensor;

namespace {

// Values are counted in parts: the places and the doubles of a large tensor would need many times its memory.
constexpr int64_t kPartSize = int64_t{1} << 22;

std::vector<double> bucket_edges() {
  std::vector<double> positive;
  for (double edge = 1e-12; edge < 1e20; edge *= 1.1) positive.push_back(edge);
  std::vector<double> edges;
  edges.reserve(2 * positive.size() + 1);
  for (auto edge = positive.rbegin(); edge != positive.rend(); ++edge) edges.push_back(-*edge);
  edges.push_back(0);
  edges.insert(edges.end(), positive.begin(), positive.end());
  return edges;
}

}  // namespace

Histogram make_histogram(const at::Tensor& values) {
  static const auto kEdges = bucket_edges();
  const auto flat = values.detach().reshape({-1});
  const auto edges = static_cast<int64_t>(kEdges.size());
  const auto limits = at::tensor(kEdges, at::kDouble).to(flat.device());
  Tensor counts, facts;
  for (const auto& part : flat.split(kPartSize)) {
    const auto reals = part.to(at::kDouble);
    // Place i lies behind edge i - 1 and before edge i; place 0 and the last one are outside.
    const auto part_counts = at::bincount(at::bucketize(reals, limits, false, true), {}, edges + 1);
    part_counts[edges - 1] += (reals == kEdges.back()).sum();  // the last bucket has its upper limit too
    const auto part_facts = at::stack({-reals.min(), reals.max(), reals.sum(), reals.dot(reals)});
    counts = counts.defined() ? counts + part_counts : part_counts;
    facts = facts.defined() ? at::cat({at::maximum(facts.slice(0, 0, 2), part_facts.slice(0, 0, 2)),
                                       facts.slice(0, 2) + part_facts.slice(0, 2)})
                            : part_facts;
  }
  const auto host_facts = facts.cpu();
  const auto host_counts = counts.cpu();

  Histogram result;
  result.min = 0.0 - host_facts[0].item<double>();  // as maximum of the negated; no negative zero
  result.max = host_facts[1].item<double>();
  result.sum = host_facts[2].item<double>();
  result.sum_squares = host_facts[3].item<double>();
  result.count = static_cast<double>(flat.numel());
  // Bucket b lies between edges b and b + 1, and is place b + 1.
  const auto* bucket = host_counts.const_data_ptr<int64_t>() + 1;
  const auto used = [](int64_t count) { return count > 0; };
  const auto first = std::find_if(bucket, bucket + edges - 1, used) - bucket;
  if (first == edges - 1) return result;
  auto last = edges - 2;
  while (bucket[last] == 0) --last;
  // Only upper limits are kept: an empty bucket in front says where the first one begins.
  result.counts.push_back(0);
  for (auto i = first; i <= last; ++i) result.counts.push_back(static_cast<double>(bucket[i]));
  result.limits.assign(kEdges.begin() + first, kEdges.begin() + last + 2);
  return result;
}

}  // namespace levin::detail
