#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/io/records/records.h"

/// How fields are kept where every field is a file of its own, named by its extension (tar, LMDB):
///
///   "image"  .png .jpg ... as encoded, .image.npy for raw pixels        "label"  .cls, digits
///   "text"   .txt                                                       others   under their names: bytes as they
///   are, numbers as .NAME.json, arrays as .NAME.npy
namespace levin::detail {

/// What an extension (lower case) means.
struct MemberType {
  enum class Role { kBytes, kImage, kLabel, kNumbers, kArray };
  std::string extension;
  /// Name of the field.
  std::string field;
  Role role = Role::kBytes;
};
MemberType member_type(std::string_view extension);

/// Adds a member's content to record `index` of `reader`. Of two images in one record the second keeps its extension.
void add_member(Record& record, const MemberType& type, std::string content, const RecordReader& reader, int64_t index);
/// A label that stands in a .json ("label", "class" or "cls") or is all of a .txt, and a label given as the name of a
/// class, become a number.
void find_label(Record& record, const std::vector<std::string>& classes);

/// The members of a record, sorted by extension.
std::vector<std::pair<std::string, std::string>> members_of(const Record& record);
/// The key as it stands in a file: no dot in its last part, no slash at its front; empty keys are numbered.
std::string member_key(const Record& record, int64_t index);

}  // namespace levin::detail
