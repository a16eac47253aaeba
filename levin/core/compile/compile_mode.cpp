#include "levin/core/compile/compile_mode.h"

#include "levin/core/error.h"

namespace levin {

CompileMode::CompileMode(std::string_view word) : kind_(Kind::kOff) {
  if (word == "fuse")
    kind_ = Kind::kFuse;
  else if (word == "graph" || word == "true" || word == "yes" || word == "on" || word == "1")
    kind_ = Kind::kGraph;
  else
    LEVIN_CHECK(word == "false" || word == "no" || word == "off" || word == "0", "[compile] \"", word,
                "\" is not known; true, \"graph\", \"fuse\" and false are");
}

std::string CompileMode::to_string() const {
  return kind_ == Kind::kFuse ? "fuse" : kind_ == Kind::kGraph ? "graph" : "false";
}

}  // namespace levin
