#pragma once

namespace levin::nn {

/// A unit whose forward does nothing with the result of its last layer but return it, so far as autograd does not see
/// more (a sum) and no interceptor looks. When activation checkpointing runs it again, it comes to its end, and its
/// result may have no values.
struct ReturnsLastLayer {
  virtual ~ReturnsLastLayer() = default;
};

}  // namespace levin::nn
