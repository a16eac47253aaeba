#include "levin/report/page.h"

#include <cstdint>
#include <ostream>
#include <sstream>

#include "levin/report/page_files.h"

namespace levin::report {
namespace {

/// The form of a digest that a Content-Security-Policy takes.
std::string base64_of_hex(std::string_view hex) {
  static constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto digit = [](char c) { return static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10); };
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : hex) {
    bits = (bits << 4 | digit(c)) & 0xffff;
    count += 4;
    if (count < 6) continue;
    count -= 6;
    out += kDigits[bits >> count & 63];
  }
  if (count > 0) out += kDigits[bits << (6 - count) & 63];
  while (out.size() % 4 != 0) out += '=';
  return out;
}

/// No script and no style but those whose digests are named; nothing is loaded, but by a live page from its server.
std::string policy(bool is_live) {
  return "default-src 'none'; script-src 'sha256-" + base64_of_hex(detail::kPageScriptSha256) +
         "'; style-src 'sha256-" + base64_of_hex(detail::kPageStyleSha256) + "'; base-uri 'none'; form-action 'none'" +
         (is_live ? "; connect-src 'self'" : "");
}

/// The length of the character at the beginning of `text`, or 0 where it is no UTF-8 (RFC 3629: no overlong forms, no
/// surrogates).
size_t utf8_length(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto rest = [&](size_t i) { return (at(i) & 0xC0U) == 0x80U; };
  const auto first = at(0), second = at(1);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4 || !rest(1)) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) {
    const bool allowed = first == 0xE0 ? second >= 0xA0 : first != 0xED || second < 0xA0;
    return allowed && rest(2) ? 3 : 0;
  }
  const bool allowed = first == 0xF0 ? second >= 0x90 : first != 0xF4 || second < 0x90;
  return allowed && rest(2) && rest(3) ? 4 : 0;
}

/// JSON that may stand in a script element: "</script>" and "<!--" have no meaning without "<", which JSON has in
/// strings alone. Line separators are escaped for readers that take JSON for JavaScript; bytes that are no UTF-8 become
/// U+FFFD.
void write_json(std::ostream& out, std::string_view json) {
  size_t begin = 0;
  const auto put = [&](size_t end, std::string_view instead, size_t length) {
    out << json.substr(begin, end - begin) << instead;
    begin = end + length;
  };
  for (size_t i = 0; i < json.size();) {
    const auto c = static_cast<unsigned char>(json[i]);
    if (c < 0x80) {
      if (c == '<') put(i, "\\u003c", 1);
      if (c == 0) put(i, "\\u0000", 1);
      ++i;
      continue;
    }
    const auto length = utf8_length(json.substr(i, 4));
    const auto character = json.substr(i, length);
    if (length == 0) put(i, "\xEF\xBF\xBD", 1);
    if (character == "\xE2\x80\xA8") put(i, "\\u2028", 3);
    if (character == "\xE2\x80\xA9") put(i, "\\u2029", 3);
    i += length == 0 ? 1 : length;
  }
  out << json.substr(begin);
}

}  // namespace

void write_html_page(std::ostream& out, std::string_view report_json, const PageOptions& options) {
  const auto& live = options.live;
  auto rest = detail::kPageHtml;
  while (true) {
    const auto open = rest.find("{{"), close = rest.find("}}");
    out << rest.substr(0, open);
    if (open == std::string_view::npos) break;
    const auto name = rest.substr(open + 2, close - open - 2);
    rest.remove_prefix(close + 2);
    if (name == "csp") out << policy(live.has_value());
    if (name == "live" && live) out << " data-live=\"" << live->version << "/" << live->traces << "\"";
    if (name == "style") out << detail::kPageStyle;
    if (name == "script") out << detail::kPageScript;
    if (name == "report") write_json(out, report_json);
  }
}

std::string html_page(std::string_view report_json, const PageOptions& options) {
  std::ostringstream out;
  write_html_page(out, report_json, options);
  return std::move(out).str();
}

}  // namespace levin::report
