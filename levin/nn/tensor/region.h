#pragma once

#include <optional>

#include <ATen/core/Generator.h>

#include "levin/nn/interceptor.h"
#include "levin/nn/tensor/part.h"

/// What stands around the modules of a split model.
namespace levin::detail {

/// Random numbers of a region: each rank has its own, and the others continue behind it on every rank alike. They
/// follow from where the generator stands at its beginning, so that a recomputation draws the same.
class RegionRandom {
 public:
  explicit RegionRandom(int rank) : rank_(rank) {}
  void begin(c10::Device device);
  void end();

 private:
  int rank_;
  at::Generator generator_;
  Tensor outer_;
  uint64_t seed_ = 0, offset_ = 0;
};

/// What the interceptors of one region share.
struct TensorRegion {
  TensorRegion(TensorRanks all, bool parts) : ranks(std::move(all)), sequence(parts), random(ranks->rank()) {}
  TensorRanks ranks;
  /// Its input and output are parts of the sequence.
  bool sequence;
  RegionRandom random;
};

/// Around the module whose input is whole.
class EnterRegion : public Interceptor {
 public:
  EnterRegion(std::shared_ptr<TensorRegion> region, TensorParallelPart* part)
      : region_(std::move(region)), part_(part) {}
  void around(Call& call) override;

 private:
  std::shared_ptr<TensorRegion> region_;
  TensorParallelPart* part_;
};

/// Around the row layer that ends it.
class LeaveRegion : public Interceptor {
 public:
  LeaveRegion(std::shared_ptr<TensorRegion> region, Tensor* bias) : region_(std::move(region)), bias_(bias) {}
  void around(Call& call) override;

 private:
  std::shared_ptr<TensorRegion> region_;
  /// Null: there is none.
  Tensor* bias_;
};

class SplitEmbedding : public Interceptor {
 public:
  explicit SplitEmbedding(VocabShare share) : share_(std::move(share)) {}
  void around(Call& call) override;

 private:
  VocabShare share_;
};

/// From here on a rank has its part of the sequence.
class BeginSequence : public Interceptor {
 public:
  explicit BeginSequence(TensorRanks ranks) : ranks_(std::move(ranks)) {}
  void around(Call& call) override;

 private:
  TensorRanks ranks_;
};

/// Up to here. `first_only`: the other outputs are for nobody.
class EndSequence : public Interceptor {
 public:
  EndSequence(TensorRanks ranks, bool first_only) : ranks_(std::move(ranks)), first_only_(first_only) {}
  void around(Call& call) override;

 private:
  TensorRanks ranks_;
  bool first_only_;
};

/// Around a block that sees a part of the sequence: its random numbers are the rank's own.
class OwnRandom : public Interceptor {
 public:
  explicit OwnRandom(int rank) : random_(rank) {}
  void around(Call& call) override;

 private:
  RegionRandom random_;
};

}  // namespace levin::detail
