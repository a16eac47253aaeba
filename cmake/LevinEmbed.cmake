# Files as strings of a source: a library that is copied or packaged has them in it.

# The text of files, one after the other.
function(levin_read_files out)
  set(_all "")
  foreach(_file ${ARGN})
    file(READ "${_file}" _text)
    string(APPEND _all "${_text}")
  endforeach()
  set(${out} "${_all}" PARENT_SCOPE)
endfunction()

# levin_embed_page(<source> <folder>): writes the source that levin/report/page_files.h declares, where its text changes.
function(levin_embed_page source folder)
  # app.js starts the page, so it is the last.
  foreach(_name base table charts spans views_overview views_operators views_trace views_memory views_idle views_runs live app)
    list(APPEND _scripts "${folder}/${_name}.js")
  endforeach()
  levin_read_files(_html "${folder}/page.html")
  levin_read_files(_style "${folder}/page.css")
  levin_read_files(_script ${_scripts})
  string(SHA256 _style_sha256 "${_style}")
  string(SHA256 _script_sha256 "${_script}")
  file(CONFIGURE OUTPUT "${source}" @ONLY CONTENT "// Written by cmake/LevinEmbed.cmake from levin/report/page/.
#include \"levin/report/page_files.h\"

namespace levin::report::detail {
const std::string_view kPageHtml = R\"levin_page(@_html@)levin_page\";
const std::string_view kPageStyle = R\"levin_page(@_style@)levin_page\";
const std::string_view kPageScript = R\"levin_page(@_script@)levin_page\";
const std::string_view kPageStyleSha256 = \"@_style_sha256@\";
const std::string_view kPageScriptSha256 = \"@_script_sha256@\";
}  // namespace levin::report::detail
")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${folder}/page.html" "${folder}/page.css" ${_scripts})
endfunction()
