#pragma once

#include <cstddef>
#include <iterator>

namespace levin::detail {

/// Goes over the batches of a pass: `Impl` has the one under way, `current`, none at the end, and `advance()`.
template <class B, class Impl>
class BatchIterator {
 public:
  using value_type = B;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  BatchIterator() = default;
  explicit BatchIterator(Impl* impl) : impl_(impl) {}
  B& operator*() const { return *impl_->current; }
  BatchIterator& operator++() {
    impl_->advance();
    return *this;
  }
  void operator++(int) { impl_->advance(); }
  bool operator==(std::default_sentinel_t) const { return !impl_->current; }

 private:
  Impl* impl_ = nullptr;
};

}  // namespace levin::detail
