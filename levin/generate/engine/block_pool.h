#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace levin::detail {

/// Which blocks of a paged cache are free, held by rows, or kept because a prompt to come may begin as they do. A block
/// can be held by several rows once it is full and known; nobody writes into it then.
class BlockPool {
 public:
  /// What a known block is the continuation of, with everything before it; 0: of nothing.
  using Node = uint64_t;

  /// Blocks `first` to `first + count - 1`.
  BlockPool(int64_t first, int64_t count);

  int64_t total() const { return static_cast<int64_t>(blocks_.size()); }
  /// Blocks that can be had: free ones, and known ones that nobody holds.
  int64_t available() const { return static_cast<int64_t>(free_.size() + unused_.size()); }
  int64_t cached() const { return static_cast<int64_t>(unused_.size()); }

  /// A block for one holder. Where none is free, the known one is forgotten whose last use is the longest ago.
  std::optional<int64_t> take();
  /// One more holder.
  void hold(int64_t block);
  /// One holder less. The last one leaves a known block behind for others. Blocks of a row are to be released from the
  /// last to the first: a beginning is worth more than what follows it.
  void release(int64_t block);

  struct Found {
    Node node;
    int64_t block;
  };
  /// The block of these tokens behind `before`. Tokens are compared, not hashes of them.
  std::optional<Found> find(Node before, std::span<const int64_t> tokens) const;
  /// Makes a full block known, or finds out that another one is already.
  Node publish(Node before, std::span<const int64_t> tokens, int64_t block);

 private:
  using Key = std::pair<Node, std::vector<int64_t>>;
  struct Block {
    int64_t holders = 0;
    /// Where it is known, and where it stands in unused_.
    std::map<Key, Found>::iterator known;
    std::list<int64_t>::iterator place;
    bool is_known = false;
  };
  Block& at(int64_t block) { return blocks_[static_cast<size_t>(block - first_)]; }

  int64_t first_;
  std::vector<Block> blocks_;
  std::vector<int64_t> free_;
  /// Known blocks without holders, the one that goes next in front.
  std::list<int64_t> unused_;
  std::map<Key, Found> known_;
  /// Never used twice, so that a block behind a forgotten one is not found behind its successor.
  Node next_node_ = 1;
};

}  // namespace levin::detail
