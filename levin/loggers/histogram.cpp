#include "levin/loggers/histogram.h"

#include <algorithm>

namespace levin::detail {
namespace {

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
  const auto flat = values.detach().reshape({-1}).to(at::kDouble);
  const auto on_host = at::tensor(kEdges, at::kDouble);
  const auto edges = static_cast<int64_t>(kEdges.size());
  // Place i lies behind edge i - 1 and before edge i; place 0 and the last one are outside.
  const auto places = at::bucketize(flat, on_host.to(flat.device()), false, true);
  auto counts = at::bincount(places, {}, edges + 1);
  counts[edges - 1] += (flat == kEdges.back()).sum();  // the last bucket has its upper limit too
  const auto facts = at::stack({flat.min(), flat.max(), flat.sum(), flat.dot(flat)}).cpu();
  const auto host_counts = counts.cpu();

  Histogram result;
  result.min = facts[0].item<double>();
  result.max = facts[1].item<double>();
  result.sum = facts[2].item<double>();
  result.sum_squares = facts[3].item<double>();
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
