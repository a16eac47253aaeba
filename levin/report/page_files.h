#pragma once

#include <string_view>

/// The files of page/, which the build writes into a source (cmake/LevinEmbed.cmake).
namespace levin::report::detail {

extern const std::string_view kPageHtml, kPageStyle, kPageScript;
/// SHA-256 of the last two, in hexadecimal, for the Content-Security-Policy.
extern const std::string_view kPageStyleSha256, kPageScriptSha256;

}  // namespace levin::report::detail
