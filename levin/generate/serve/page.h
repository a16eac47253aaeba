#pragma once

#include <string_view>

/// The page at `/`: it needs nothing from elsewhere.
namespace levin::serve {

std::string_view page_html();
std::string_view page_style();
std::string_view page_script();
std::string_view page_markdown();
std::string_view page_icon();

}  // namespace levin::serve
