#pragma once

#include <span>
#include <string>

namespace levin::text {

/// The content of a tokenizer.json whose tokens are single characters: the i-th of `characters` has the id i. Written
/// as a BPE without merges, which every reader of such files knows. A character that is not among them has no token and
/// is left out by encode().
///
///     levin::write_file("tokenizer.json", levin::text::character_tokenizer(U"\n abc"));
std::string character_tokenizer(std::span<const char32_t> characters);

}  // namespace levin::text
