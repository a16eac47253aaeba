#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "levin/io/records/records.h"

/// What a record is as a tf.train.Example:
///
///   key      "__key__"                                         "image"  "image/encoded" and "image/format"
///   "label"  "image/class/label", the number as it is          an array "NAME/raw", "NAME/shape", "NAME/dtype"
///
/// and everything else under its own name. ImageNet's files count their labels from 1; nobody guesses that here.
namespace levin::detail {

/// Throws an Error that gives only the reason.
Record record_of_example(std::string_view bytes);
std::string example_of_record(const Record& record);

/// Class names, "0:cat" a line, in a file beside the first of the records: "train.labels.txt", or "labels.txt" of its
/// folder.
constexpr const char* kTfLabels = ".labels.txt";
std::vector<std::string> read_tf_classes(const std::filesystem::path& first);
std::string write_tf_classes(const std::vector<std::string>& classes);

}  // namespace levin::detail
