// clang-format off
// fuzz-sources: levin/text/*.cpp levin/text/jinja/*.cpp levin/text/unicode/*.cpp levin/core/error.cpp levin/core/words.cpp levin/core/files.cpp levin/core/staging.cpp levin/core/host.cpp levin/core/checksum.cpp
// fuzz-seeds: tests/text/fixtures/chat/*.jinja
// clang-format on
//
// Any bytes given as a chat template render a text or are refused in one line, within their limits.
#include <string_view>

#include "fuzz.h"
#include "levin/text/chat_template.h"
#include "levin/text/unicode/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  levin::fuzz::taken([&] {
    const levin::text::ChatTemplate chat(source);
    const auto text = chat.render(
        R"({"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b \u00e9"}], "tools": null,
            "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})",
        {.steps = 20'000, .bytes = 1 << 20});
    if (!levin::text::valid_utf8(text)) levin::fuzz::complain("a text that is no UTF-8");
  });
  return 0;
}
