#include "levin/generate/serve/page.h"
namespace levin::serve {
std::string_view page_html() {
  return "";
}
std::string_view page_style() {
  return "";
}
std::string_view page_script() {
  return "";
}
std::string_view page_icon() {
  return "";
}
}  // namespace levin::serve
