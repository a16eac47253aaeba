#include "levin/checkpoint/reader.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "levin/checkpoint/state_files.h"
#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/parallel.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

/// The tensors of one dict of a checkpoint.
class CheckpointSource : public TensorSource {
 public:
  CheckpointSource(const CheckpointReader& reader, const std::vector<std::pair<std::string, std::string>>& children)
      : reader_(reader) {
    for (const auto& [name, id] : children) {
      names_.push_back(name);
      if (!id.empty()) ids_.emplace(name, id);
    }
  }
  std::vector<std::string> names() const override { return names_; }
  Tensor like(const std::string& name) const override {
    const auto found = ids_.find(name);
    return found == ids_.end() ? Tensor() : reader_.like(found->second);
  }
  Tensor read(const std::string& name) const override { return reader_.read_tensor(ids_.at(name)); }
  void read_into(const std::string& name, Tensor& into) const override {
    reader_.read_tensor_into(ids_.at(name), into);
  }
  void read_rows(const std::string& name, int64_t start, Tensor& into) const override {
    reader_.read_rows_into(ids_.at(name), start, into);
  }

 private:
  const CheckpointReader& reader_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::string> ids_;
};

/// Rows from `first` on, as many as `into` has, read by all threads: memory that is new, or in the page cache, is as
/// fast as they are many.
void read_together(const SafetensorsFile& file, const SafetensorsEntry& entry, int64_t first, const Tensor& into) {
  constexpr int64_t kLeastBytes = 1 << 20;
  const int64_t rows = into.size(0), bytes = std::max<int64_t>(static_cast<int64_t>(into.nbytes()) / rows, 1);
  parallel_for(0, rows, std::max<int64_t>(kLeastBytes / bytes, 1), [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    auto part = into.narrow(0, begin, end - begin);
    file.read_rows(entry, first + begin, part);
  });
}

bool has_whole_rows(const TensorPart& part, const TensorEntry& tensor) {
  return std::equal(part.shape.begin() + 1, part.shape.end(), tensor.shape.begin() + 1);
}

}  // namespace

bool looks_like_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return false;
  if (fs::exists(path / kStateFile, error)) return true;
  if (fs::exists(path / kManifestFile, error)) {
    // A file of that name may be anyone's.
    const auto text = read_file(path / kManifestFile);
    if (text.find("levin checkpoint") != std::string::npos) return true;
  }
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
    if (const auto name = it->path().filename().string();
        name.ends_with(".safetensors") && name.find(".rank-") != std::string::npos)
      return true;
  return false;
}

CheckpointReader::CheckpointReader(const fs::path& folder) : where_(folder.string()) {
  auto name = folder.lexically_normal();
  if (!name.has_filename()) name = name.parent_path();
  restore_replaced(name);
  std::error_code ignored;
  LEVIN_CHECK(fs::exists(name, ignored), "[checkpoint] \"", where_, "\" does not exist");
  LEVIN_CHECK(fs::is_directory(name, ignored), "[checkpoint] \"", where_, "\" is a file, a checkpoint is a folder");
  LEVIN_CHECK(fs::exists(name / kManifestFile, ignored), "[checkpoint] \"", where_,
              "\" is incomplete: it has no manifest.json");
  // Another process may replace the checkpoint while its files are opened; what is open stays what it was.
  constexpr int kTries = 10;
  for (int tries = 1;; ++tries) {
    const auto text = read_file(name / kManifestFile);
    try {
      manifest_ = parse_manifest(text, where_);
      check_files(name);
      note_saved_at(manifest_.saved_at);
      return;
    } catch (const Error&) {
      const bool replaced = fs::exists(name / kManifestFile, ignored) && read_file(name / kManifestFile) != text;
      if (tries == kTries || !replaced) throw;
    }
    files_.clear();
    index_.clear();
    tree_.reset();
  }
}

void CheckpointReader::check_files(const fs::path& folder) {
  for (const auto& file : manifest_.files) {
    const auto path = folder / file.name;
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    LEVIN_CHECK(!error, "[checkpoint] \"", where_, "\" is incomplete: cannot read \"", file.name,
                "\": ", error.message());
    LEVIN_CHECK(bytes == file.bytes, "[checkpoint] \"", where_, "\" is damaged: \"", file.name, "\" has ", bytes,
                " bytes, ", file.bytes, " were written");
    if (file.name == kStateFile) continue;
    const auto& opened = files_.emplace(file.name, path).first->second;
    LEVIN_CHECK(checksum_text(opened.header_checksum()) == file.checksum, "[checkpoint] \"", where_,
                "\" is damaged: the header of \"", file.name, "\" has checksum ",
                checksum_text(opened.header_checksum()), ", ", file.checksum, " was written");
  }
  const auto state = std::find_if(manifest_.files.begin(), manifest_.files.end(),
                                  [](const FileEntry& file) { return file.name == kStateFile; });
  LEVIN_CHECK(state != manifest_.files.end(), "[checkpoint] \"", where_, "\": the manifest lists no state.json");
  const auto text = read_file(folder / kStateFile);
  LEVIN_CHECK(checksum_text(crc32c(text)) == state->checksum, "[checkpoint] \"", where_,
              "\" is damaged: state.json has checksum ", checksum_text(crc32c(text)), ", ", state->checksum,
              " was written");
  tree_ = std::make_unique<Tree>(text, where_);

  for (size_t i = 0; i < manifest_.tensors.size(); ++i) {
    const auto& tensor = manifest_.tensors[i];
    LEVIN_CHECK(index_.emplace(tensor.id, i).second, "[checkpoint] \"", where_, "\": the manifest lists \"",
                printable(tensor.id), "\" twice");
    for (const auto& part : tensor.parts) {
      const auto file = files_.find(part.file);
      const auto* found = file == files_.end() ? nullptr : file->second.find(part.name);
      LEVIN_CHECK(found && found->dtype == tensor.dtype && found->shape == part.shape, "[checkpoint] \"", where_,
                  "\" is damaged: \"", printable(part.file), "\" does not hold \"", printable(tensor.id),
                  "\" as the manifest says");
    }
  }
}

bool CheckpointReader::sharded() const {
  return std::any_of(manifest_.tensors.begin(), manifest_.tensors.end(), [](const TensorEntry& tensor) {
    return tensor.parts.size() != 1 || tensor.parts[0].file.find(".rank-") != std::string::npos;
  });
}

std::vector<std::pair<std::string, std::string>> CheckpointReader::list(std::string_view key) const {
  std::vector<std::string> ids;
  std::string current;
  StateFiles files([&](const Tensor&) { return current; });
  (void)tree_->decode_at(key, [&](const StatePath& path, const std::string& id) {
    current = id;
    if (files.place(path, like(id)); files.files().back().items.size() > ids.size()) ids.push_back(id);
    return Tensor();
  });
  std::vector<std::pair<std::string, std::string>> listed;
  for (size_t i = 0; i < ids.size(); ++i) listed.emplace_back(files.files().back().items[i].name, ids[i]);
  return listed;
}

std::vector<std::pair<std::string, std::string>> CheckpointReader::list_all() const {
  std::vector<std::pair<std::string, std::string>> listed;
  std::unordered_set<std::string> taken;
  for (const auto& key : keys()) {
    const auto tensors = list(key);
    const bool is_tensor = !is_dict(key) && tensors.size() == 1 && tensors[0].first == key;
    for (const auto& [name, id] : tensors) {
      const auto full = is_tensor ? name : key + "." + name;
      auto free = full;
      for (int n = 2; !taken.insert(free).second; ++n) free = fmt::format("{}#{}", full, n);
      listed.emplace_back(std::move(free), id);
    }
  }
  return listed;
}

uint64_t CheckpointReader::verify_part(const TensorEntry& tensor, const TensorPart& part) const {
  const auto& file = files_.at(part.file);
  const auto& entry = file.at(part.name);
  const auto found = checksum_text(file.checksum(entry));
  LEVIN_CHECK(found == part.checksum, "[checkpoint] \"", where_, "\" is damaged: tensor \"", printable(tensor.id),
              "\" in \"", part.file, "\" has checksum ", found, ", ", printable(part.checksum), " was written");
  return entry.bytes();
}

void CheckpointReader::verify(int share, int sharers, const std::function<void(uint64_t)>& checked) const {
  std::vector<std::pair<const TensorEntry*, const TensorPart*>> mine;
  int turn = 0;
  for (const auto& tensor : manifest_.tensors)
    for (const auto& part : tensor.parts)
      if (turn++ % sharers == share) mine.emplace_back(&tensor, &part);

  std::mutex mutex;
  std::exception_ptr damage;
  std::atomic<int64_t> end = static_cast<int64_t>(mine.size());  // the first that is damaged, so far
  parallel_for(0, end, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to && i < end; ++i) try {
        const auto [tensor, part] = mine[static_cast<size_t>(i)];
        const auto bytes = verify_part(*tensor, *part);
        const std::lock_guard lock(mutex);
        if (checked) checked(bytes);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < end) end = i, damage = std::current_exception();
      }
  });
  if (damage) std::rethrow_exception(damage);
}

const TensorEntry& CheckpointReader::entry(const std::string& id) const {
  const auto found = index_.find(id);
  LEVIN_CHECK(found != index_.end(), "[checkpoint] \"", where_, "\": state.json speaks of a tensor \"", printable(id),
              "\" that the manifest does not list");
  return manifest_.tensors[found->second];
}

Tensor CheckpointReader::like(const std::string& id) const {
  const auto& tensor = entry(id);
  const auto* type = find_safetensors_type(tensor.dtype);
  LEVIN_CHECK(type && type->type != c10::ScalarType::Undefined, "[checkpoint] \"", where_, "\": \"", printable(id),
              "\" has dtype ", printable(tensor.dtype), ", which cannot be read");
  return at::empty(tensor.shape, at::TensorOptions().dtype(type->type).device(at::kMeta));
}

Tensor CheckpointReader::read_tensor(const std::string& id) const {
  const auto described = like(id);
  auto tensor = at::empty(described.sizes(), described.options().device(at::kCPU));
  read_tensor_into(id, tensor);
  return tensor;
}

void CheckpointReader::read_rows_into(const std::string& id, int64_t start, Tensor& into) const {
  const auto& tensor = entry(id);
  if (tensor.shape.empty()) {
    auto scalar = into.numel() == 1 ? into.view(at::IntArrayRef()) : into;
    for (const auto& part : tensor.parts)
      if (into.numel() == 1) files_.at(part.file).read_into(files_.at(part.file).at(part.name), scalar);
    return;
  }
  const auto end = start + into.size(0);
  for (const auto& part : tensor.parts) {
    const auto first = std::max(start, part.start[0]);
    const auto last = std::min(end, part.start[0] + part.shape[0]);
    if (first >= last) continue;
    const auto& file = files_.at(part.file);
    auto place = into.narrow(0, first - start, last - first);
    if (has_whole_rows(part, tensor)) {
      read_together(file, file.at(part.name), first - part.start[0], place);
      continue;
    }
    for (size_t d = 1; d < part.start.size(); ++d)
      place = place.narrow(static_cast<int64_t>(d), part.start[d], part.shape[d]);
    place.copy_(file.read(part.name).narrow(0, first - part.start[0], last - first));
  }
}

StateValue CheckpointReader::read(std::string_view key) const {
  // One tensor under two names is one tensor again.
  std::unordered_map<std::string, Tensor> seen;
  return tree_->decode(key, [&](const std::string& id) {
    auto& tensor = seen[id];
    if (!tensor.defined()) tensor = read_tensor(id);
    return tensor;
  });
}

StateValue CheckpointReader::read(std::string_view key, const ShardTargets& targets) const {
  std::map<std::tuple<std::string, int64_t, int64_t>, Tensor> seen;
  return tree_->decode_at(key, [&](const StatePath& path, const std::string& id) {
    const auto described = like(id);
    const auto rows = targets.find(path, described.sizes());
    auto& tensor = seen[{id, rows ? rows->start : -1, rows ? rows->rows : -1}];
    if (tensor.defined()) return tensor;
    if (!rows) return tensor = read_tensor(id);
    if (rows->slice)
      return tensor = read_slice(*rows->slice, described.options().device(at::kCPU),
                                 [&](int64_t start, Tensor& into) { read_rows_into(id, start, into); });
    tensor = at::empty(rows->sizes, described.options().device(at::kCPU));
    read_rows_into(id, rows->start, tensor);
    return tensor;
  });
}

std::optional<StateValue> CheckpointReader::describe(std::string_view key, const ShardTargets* targets,
                                                     std::vector<DescribedTensor>& tensors) const {
  return tree_->decode_at(key, [&](const StatePath& path, const std::string& id) {
    const auto described = like(id);
    const auto rows = targets ? targets->find(path, described.sizes()) : std::nullopt;
    if (!rows && described.numel() <= 1) return read_tensor(id);
    const auto here = rows ? at::empty(rows->sizes, described.options()) : described;
    tensors.push_back({path, here, [this, id, rows](Tensor& into) {
                         if (!rows) return read_tensor_into(id, into);
                         if (!rows->slice) return read_rows_into(id, rows->start, into);
                         load_tensor(into, read_slice(*rows->slice, into.options(), [&](int64_t start, Tensor& part) {
                                       read_rows_into(id, start, part);
                                     }));
                       }});
    return here;
  });
}

StateValue CheckpointReader::describe(std::string_view key, std::map<std::string, Tensor>& ids) const {
  return tree_->decode(key, [&](const std::string& id) {
    auto& tensor = ids[id];
    if (!tensor.defined()) tensor = like(id);
    return tensor;
  });
}

std::unique_ptr<TensorSource> CheckpointReader::tensors(std::string_view key) const {
  return std::make_unique<CheckpointSource>(*this, tree_->children(key));
}

}  // namespace levin::detail
