#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/text/unicode/unicode.h"

namespace levin::text {

/// Bytes of the original text, from `begin` to before `end`.
struct Span {
  uint32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

/// A text that is being changed, and for each of its bytes the characters of the original that it came from. While
/// nothing has changed it is a view of the original and keeps no table.
class Aligned {
 public:
  /// A part of the original that begins at its byte `base`. The original must outlive this object.
  explicit Aligned(std::string_view part, size_t base = 0) : view_(part), base_(base) {}
  Aligned(std::string text, std::vector<Span> spans);
  Aligned(Aligned&& other) noexcept { *this = std::move(other); }
  Aligned& operator=(Aligned&& other) noexcept;

  std::string_view text() const { return view_; }
  bool is_original() const { return is_original_; }
  size_t base() const { return base_; }
  /// Of the whole characters that a byte came from.
  Span source(size_t byte) const;
  Span source(size_t begin, size_t end) const { return {source(begin).begin, source(end - 1).end}; }

  /// Replaces the text by these code points. `removed` code points in front are dropped.
  void transform(std::span<const Change> changes, size_t removed = 0);
  /// Keeps the code points for which `keep` is true.
  void filter(const std::function<bool(char32_t)>& keep);
  void map(const std::function<char32_t(char32_t)>& change);
  /// Puts a text in front, aligned with the first character; nothing happens to an empty text.
  void prepend(std::string_view head);
  /// Each pair is a range of bytes, in order, that `content` replaces.
  void replace(std::span<const Span> ranges, std::string_view content);
  void set(std::string text, std::vector<Span> spans);

  /// Appends [begin, end) of this text to another one's parts.
  void copy_to(size_t begin, size_t end, std::string& text, std::vector<Span>& spans) const;

 private:
  std::string_view view_;
  size_t base_ = 0;
  bool is_original_ = true;
  std::string text_;
  std::vector<Span> spans_;
};

/// Throws when a text has grown past what a sound tokenizer file does: 16 MB and 32 times the original.
void check_growth(size_t size, size_t original);

}  // namespace levin::text
