// clang-format off
// fuzz-sources: levin/text/*.cpp levin/text/jinja/*.cpp levin/text/unicode/*.cpp levin/core/error.cpp levin/core/words.cpp levin/core/files.cpp levin/core/staging.cpp levin/core/host.cpp levin/core/checksum.cpp
// fuzz-seeds: tests/text/fixtures/*/tokenizer.json
// clang-format on
//
// Any bytes given as a tokenizer.json make a tokenizer or a one-line Error. A tokenizer encodes a text of all kinds of
// characters, or refuses it; its ids are decoded, at once and one by one, to the same text.
#include <algorithm>
#include <string>
#include <string_view>

#include "fuzz.h"
#include "levin/text/tokenizer.h"
#include "levin/text/unicode/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using levin::text::Tokenizer;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  constexpr std::string_view text =
      "It's a <s>test</s> 12345 of \xc3\xa9 e\xcc\x81 \xe4\xbd\xa0\xe5\xa5\xbd "
      "\xf0\x9f\x98\x80\xe2\x80\x8d\xf0\x9f\x91\xa9  \n\n\tend.";
  levin::fuzz::taken([&] {
    const auto tokenizer = Tokenizer::from_json(json);
    levin::fuzz::taken([&] {
      const auto encoding = tokenizer.encode(text);
      if (encoding.tokens.size() != encoding.ids.size() || encoding.offsets.size() != encoding.ids.size())
        levin::fuzz::complain("lists of several lengths");
      const auto decoded = tokenizer.decode(encoding.ids, false);
      if (!levin::text::valid_utf8(decoded)) levin::fuzz::complain("a text that is no UTF-8");
      levin::text::DecodeStream stream(tokenizer, false);
      for (size_t i = 0; i < std::min<size_t>(encoding.ids.size(), 64); ++i) {
        if (!levin::text::valid_utf8(stream.step(encoding.ids[i]))) levin::fuzz::complain("half a character");
      }
      static_cast<void>(tokenizer.encode_pair("a b", text));
    });
  });
  return 0;
}
