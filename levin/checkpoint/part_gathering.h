#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/checkpoint/shards.h"

namespace levin::detail {

/// Full tensors on rank 0, or on every rank, from the shards that ranks hold: rank 0 asks for tensors by id, and the
/// others answer until it has all. Only rank 0 fails: the others continue until they are told.
///
///     PartGathering parts(group, {{"weight", {weight, *shards.find(weight)}}});
///     group.rank() == 0 ? (write(parts.whole("weight")), parts.end()) : parts.serve();
///
/// Small tensors travel together, as many as fit into 1 MiB (32 MiB where every rank gets them): with N ranks each such
/// bucket takes about 5 N messages, whatever number of tensors is in it. A larger tensor travels alone, so that rank 0
/// never has more than one of them.
class PartGathering {
 public:
  /// What this rank holds.
  struct Part {
    Tensor tensor;
    ShardPlace place;
  };
  /// By id, in the order in which rank 0 is likely to ask.
  using Parts = std::vector<std::pair<std::string, Part>>;
  /// A tensor that rank 0 has asked for, on another rank.
  using Received = std::function<void(const Part& part, Tensor whole)>;

  /// `to_all`: every rank gets the full tensors.
  PartGathering(Collective& group, Parts parts, bool to_all = false);

  /// On rank 0: the full tensor, on the CPU.
  Tensor whole(const std::string& id);
  /// On rank 0: no more will be asked.
  void end();
  /// On the others: sends what is asked for, and with `to_all` calls `received` for each tensor.
  void serve(const Received& received = {});

 private:
  /// A tensor of a request: its id, and the bytes of the full tensor.
  struct Asked {
    std::string id;
    int64_t bytes = 0;
  };
  struct Figures;
  struct Assembly;

  const Part* find(const std::string& id) const;
  static Figures figures_of(const Part* part);
  static Tensor piece_of(const Part& part);
  std::vector<Asked> bucket_from(size_t index) const;
  void fetch(const std::vector<Asked>& asked);
  void receive_pieces(int rank, const std::vector<Figures>& told, std::vector<Assembly>& tensors);
  void answer(const std::vector<Asked>& asked, const Received& received);

  std::vector<Asked> broadcast_request(const std::vector<Asked>& asked);
  void broadcast_bytes(const Tensor& bytes);
  void send(const Tensor& bytes);
  void receive(const Tensor& bytes, int rank);

  Collective& group_;
  Parts parts_;
  const bool to_all_;
  std::unordered_map<std::string_view, size_t> index_;
  /// On rank 0: tensors that came with others, until they are asked for. Undefined: the shards do not fit together.
  std::unordered_map<std::string, Tensor> ahead_;
  int64_t ahead_bytes_ = 0;
  std::vector<bool> fetched_;
};

}  // namespace levin::detail
