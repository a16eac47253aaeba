#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "levin/core/main.h"
#include "levin/models/folder.h"
#include "levin/nn/tensor/part.h"
#include "levin/program/flags.h"

namespace levin::cli {

/// --tensor-parallel of commands that run a model: ranks that have it together. The command starts them itself, unless
/// `levin run`, torchrun or SLURM has.
class TensorRanksFlag {
 public:
  explicit TensorRanksFlag(std::string command) : command_(std::move(command)) {}
  void describe(Flags& flags);

  /// Asks the environment; before anything below. A number that is not that of the ranks that were started is an Error.
  void look();
  /// An Error where the ranks cannot share the model, before any of them reads it.
  void check(const models::LanguageModel& sizes) const;
  /// This process is only to start the ranks.
  bool starts_ranks() const { return starts_; }
  /// Starts them with the same command line and waits; the exit status. When it is told to stop, ranks have
  /// `stop_grace` to end.
  int start(const Args& args, std::chrono::milliseconds stop_grace = std::chrono::seconds(5)) const;
  /// There is more than one rank, or will be.
  bool is_used() const { return starts_ || world_ > 1; }
  /// The rank that reads the input and writes the output.
  bool is_first() const { return rank_ == 0; }

  /// Joins the ranks; null when there is one. `device` becomes that of the rank.
  TensorRanks join(c10::Device& device) const;

 private:
  std::string command_;
  int64_t size_ = 0;
  int rank_ = 0, world_ = 1;
  bool starts_ = false;
};

/// Prompts of rank 0, on every rank. Null ranks: as they are.
std::vector<std::vector<int64_t>> prompts_of_first_rank(const TensorRanks& ranks,
                                                        std::vector<std::vector<int64_t>> prompts);
/// Runs the body; what it throws is told to the other ranks, which do not wait for this one then.
void among_ranks(const TensorRanks& ranks, const std::function<void()>& body);

}  // namespace levin::cli
