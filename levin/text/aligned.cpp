#include "levin/text/aligned.h"

#include <algorithm>

#include "levin/core/error.h"

namespace levin::text {

void check_growth(size_t size, size_t original) {
  LEVIN_CHECK(size <= (size_t{16} << 20) + 32 * original, "[tokenizer] the normalizer makes a text of ", original,
              " bytes too large: ", size, " bytes");
}

Aligned::Aligned(std::string text, std::vector<Span> spans) {
  set(std::move(text), std::move(spans));
}

Aligned& Aligned::operator=(Aligned&& other) noexcept {
  view_ = other.view_;
  base_ = other.base_;
  is_original_ = other.is_original_;
  text_ = std::move(other.text_);
  spans_ = std::move(other.spans_);
  if (!is_original_) view_ = text_;  // short strings move their bytes
  return *this;
}

void Aligned::set(std::string text, std::vector<Span> spans) {
  text_ = std::move(text);
  spans_ = std::move(spans);
  view_ = text_;
  is_original_ = false;
}

Span Aligned::source(size_t byte) const {
  if (!is_original_) return spans_[byte];
  size_t begin = byte, end = byte + 1;
  while (begin > 0 && (view_[begin] & 0xc0) == 0x80) --begin;
  while (end < view_.size() && (view_[end] & 0xc0) == 0x80) ++end;
  return {static_cast<uint32_t>(base_ + begin), static_cast<uint32_t>(base_ + end)};
}

void Aligned::transform(std::span<const Change> changes, size_t removed) {
  std::string text;
  std::vector<Span> spans;
  text.reserve(view_.size());
  spans.reserve(view_.size());
  size_t at = 0;  // where the next code point is taken from
  const auto skip = [&] {
    if (at < view_.size()) at += utf8_length(view_[at]);
  };
  for (size_t i = 0; i < removed; ++i) skip();
  for (const auto& [point, change] : changes) {
    Span span;
    if (change > 0) {
      if (at > 0) span = source(at - 1);
    } else if (at < view_.size()) {
      span = source(at);
    }
    if (change <= 0) {
      for (int32_t i = change; i <= 0; ++i) skip();
    }
    append_utf8(text, point);
    spans.resize(text.size(), span);
  }
  check_growth(text.size(), view_.size());
  set(std::move(text), std::move(spans));
}

void Aligned::filter(const std::function<bool(char32_t)>& keep) {
  std::vector<Change> changes;
  int32_t removed = 0;
  size_t first = 0;
  for (size_t at = 0; at < view_.size();) {
    const auto [point, bytes] = decode_utf8(view_, at);
    at += bytes;
    if (!keep(point)) {
      ++removed;
      continue;
    }
    if (changes.empty())
      first = static_cast<size_t>(removed);
    else
      changes.back().change = -removed;
    changes.push_back({point, 0});
    removed = 0;
  }
  if (first == 0 && removed == 0 &&
      std::all_of(changes.begin(), changes.end(), [](const Change& change) { return change.change == 0; }))
    return;
  transform(changes, first);
}

void Aligned::map(const std::function<char32_t(char32_t)>& change) {
  std::vector<Change> changes;
  changes.reserve(view_.size());
  bool any = false;
  for (size_t at = 0; at < view_.size();) {
    const auto [point, bytes] = decode_utf8(view_, at);
    at += bytes;
    changes.push_back({change(point), 0});
    any = any || changes.back().point != point;
  }
  if (any) transform(changes);
}

void Aligned::prepend(std::string_view head) {
  if (view_.empty() || head.empty()) return;
  std::string text(head);
  std::vector<Span> spans(head.size(), source(0));
  copy_to(0, view_.size(), text, spans);
  set(std::move(text), std::move(spans));
}

void Aligned::replace(std::span<const Span> ranges, std::string_view content) {
  if (ranges.empty()) return;
  check_growth(view_.size() + ranges.size() * content.size(), view_.size());
  std::string text;
  std::vector<Span> spans;
  size_t rest = 0;
  for (const auto& [begin, end] : ranges) {
    copy_to(rest, begin, text, spans);
    text += content;
    spans.resize(text.size(), end == 0 ? Span{} : source(end - 1));
    rest = end;
  }
  copy_to(rest, view_.size(), text, spans);
  set(std::move(text), std::move(spans));
}

void Aligned::copy_to(size_t begin, size_t end, std::string& text, std::vector<Span>& spans) const {
  text += view_.substr(begin, end - begin);
  if (!is_original_) {
    spans.insert(spans.end(), spans_.begin() + static_cast<long>(begin), spans_.begin() + static_cast<long>(end));
    return;
  }
  for (size_t at = begin; at < end;) {
    const auto span = source(at);
    const auto bytes = base_ + end < span.end ? end - at : span.end - base_ - at;
    spans.insert(spans.end(), bytes, span);
    at += bytes;
  }
}

}  // namespace levin::text
