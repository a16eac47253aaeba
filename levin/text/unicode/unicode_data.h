#pragma once

/// The tables of unicode.cpp as text; tests/text/make_unicode_tables.py writes them.
namespace levin::text::detail {

extern const char* const kPropertyValues;
extern const char* const kPropertyRanges;
extern const char* const kScriptNames;
extern const char* const kCanonical;
extern const char* const kCompatible;
extern const char* const kCompositions;
extern const char* const kCombining;
extern const char* const kLower;
extern const char* const kFold;

}  // namespace levin::text::detail
