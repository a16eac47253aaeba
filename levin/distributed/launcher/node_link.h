#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levin/distributed/rank_failure.h"

namespace levin::detail {

struct NodeLinkSpec {
  int num_nodes = 1;
  int node_rank = 0;  // -1: the nodes agree
  int nproc = 1;
  int max_restarts = 0;
  std::string address;
  int port = 0;
  std::string host;  // this machine's name
  std::chrono::milliseconds join_timeout{};
};

/// What is known of the other nodes.
struct NodeNews {
  bool joined = false;
  int attempt = 0;  // what the rest is about
  int node_rank = 0;
  int max_restarts = 0;               // node 0's
  std::vector<int> nproc;             // of every node
  std::string waiting_for;            // while not joined
  std::vector<RankFailure> failures;  // of this attempt, in one order for all nodes
  bool all_done = false;              // every rank of every node has ended well
  bool all_ended = false;             // no rank of this attempt is left anywhere
  bool all_left = false;              // everybody has said good-bye
  std::vector<std::string> silent;    // on node 0: the nodes that have not
  std::string error;                  // the link is gone: why
};

/// Connects the launchers of a run's nodes through the store of node 0. All talking is done by a thread of its own, so
/// that a peer that does not answer never holds up the ranks of this node.
class NodeLink {
 public:
  explicit NodeLink(const NodeLinkSpec& spec);
  ~NodeLink();
  NodeLink(const NodeLink&) = delete;
  NodeLink& operator=(const NodeLink&) = delete;

  /// Readable when there is news.
  int fd() const;
  NodeNews news();

  void begin_attempt(int attempt);
  void report(const RankFailure& failure);
  /// All ranks of this node have ended well.
  void done();
  /// No rank of this node is left.
  void ended();
  /// Says good-bye. Node 0, which serves the store, waits a little for the others to do so; returns those that did not.
  std::vector<std::string> leave(std::chrono::milliseconds patience);

 private:
  struct Shared;
  void order(std::function<void(Shared&)> command);

  std::shared_ptr<Shared> shared_;
};

}  // namespace levin::detail
