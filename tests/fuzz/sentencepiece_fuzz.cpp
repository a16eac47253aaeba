// clang-format off
// fuzz-sources: levin/text/*.cpp levin/text/jinja/*.cpp levin/text/unicode/*.cpp levin/core/error.cpp levin/core/words.cpp levin/core/files.cpp levin/core/staging.cpp levin/core/host.cpp levin/core/checksum.cpp
// fuzz-seeds: tests/text/fixtures/*/tokenizer.model
// fuzz-count: 1000
// clang-format on
//
// Any bytes given as a model of SentencePiece make a tokenizer or a one-line Error.
#include <string_view>

#include "fuzz.h"
#include "levin/text/sentencepiece.h"
#include "levin/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  using levin::text::SentencePieceKind;
  for (const auto kind : {SentencePieceKind::kAuto, SentencePieceKind::kT5, SentencePieceKind::kXlmRoberta}) {
    levin::fuzz::taken([&] {
      const auto json = levin::text::json_of_sentencepiece(bytes, {.kind = kind, .add_bos_token = true});
      const auto tokenizer = levin::text::Tokenizer::from_json(json);
      const auto ids = tokenizer.encode("A small \xc3\xa9 text  \xf0\x9f\x98\x80 <s>.").ids;
      static_cast<void>(tokenizer.decode(ids));
    });
  }
  return 0;
}
