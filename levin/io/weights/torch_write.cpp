#include <algorithm>
#include <bit>
#include <charconv>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/weights/torch_file.h"
#include "levin/io/weights/zip_file.h"
#include "levin/io/weights/zip_format.h"

namespace levin {
namespace {

/// Tensors that share memory, of one type. Different views bring the whole of it; a tensor under one or several names
/// is written separately, so that a slice does not bring along what it was cut from.
struct WrittenStorage {
  std::vector<Tensor> users;
  size_t key = 0;
  bool whole = false;

  int64_t elements() const {
    const auto& first = users.front();
    return whole ? static_cast<int64_t>(first.storage().nbytes() / first.element_size()) : first.numel();
  }
  /// A copy: the archive has the checksum before the bytes, and another thread may be changing the tensor.
  Tensor data() const {
    const auto& first = users.front();
    const auto flat = whole ? first.detach().as_strided({elements()}, {1}, 0) : first.detach().contiguous();
    const auto data = flat.cpu();
    return data.is_alias_of(first) ? data.clone() : data;
  }
};

class TorchWriter {
 public:
  /// `numbered`: the dict at the top whose names are numbers.
  explicit TorchWriter(const std::filesystem::path& path, std::string_view numbered = {})
      : file_(path), where_(path.string()), numbered_(numbered) {}

  void write(const StateDict& tree) {
    collect(tree);
    for (size_t i = 0; i < storages_.size(); ++i) {
      auto& storage = storages_[i];
      storage.key = i;
      const auto& first = storage.users.front();
      storage.whole = !std::all_of(storage.users.begin(), storage.users.end(), [&](const Tensor& user) {
        return user.sizes() == first.sizes() && user.strides() == first.strides() &&
               user.storage_offset() == first.storage_offset();
      });
    }
    pickle_ = "\x80\x02";
    if (numbered_.empty())
      put_dict(tree, true);
    else
      put_numbered(tree);
    pickle_ += '.';

    ZipWriter zip(file_.writer());
    zip.add("archive/data.pkl", pickle_);
    zip.add("archive/byteorder", "little");
    for (const auto& storage : storages_) {
      const auto data = storage.data();
      zip.add(fmt::format("archive/data/{}", storage.key),
              std::span(static_cast<const std::byte*>(data.const_data_ptr()), data.nbytes()));
    }
    zip.add("archive/version", "3\n");
    zip.finish();
    file_.commit();
  }

 private:
  static std::string place_of(const Tensor& tensor) {
    const void* memory = tensor.storage().data();
    // Tensors without memory share nothing.
    if (!memory || tensor.numel() == 0) return fmt::format("{}", fmt::ptr(tensor.unsafeGetTensorImpl()));
    return fmt::format("{} {} {}", fmt::ptr(memory), tensor.device().str(), c10::toString(tensor.scalar_type()));
  }

  void collect(const StateValue& value) {
    if (value.is_tensor()) {
      const auto& tensor = value.to_tensor();
      LEVIN_CHECK(tensor.defined(), "[torch_file] \"", where_, "\": an undefined tensor cannot be written");
      LEVIN_CHECK(tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_meta(), "[torch_file] \"",
                  where_, "\": a tensor that is sparse, quantized or meta cannot be written");
      const auto [found, fresh] = index_.emplace(place_of(tensor), storages_.size());
      if (fresh) storages_.emplace_back();
      storages_[found->second].users.push_back(tensor);
    } else if (value.is_list()) {
      for (const auto& item : value.to_list()) collect(item);
    } else if (value.is_dict()) {
      collect(value.to_dict());
    }
  }
  void collect(const StateDict& dict) {
    for (const auto& [name, item] : dict) collect(item);
  }

  void put_text(std::string_view text) {
    pickle_ += 'X';
    detail::zip_put<uint32_t>(pickle_, static_cast<uint32_t>(text.size()));
    pickle_ += text;
  }
  void put_global(std::string_view module, std::string_view name) { pickle_ += fmt::format("c{}\n{}\n", module, name); }
  void put_integer(int64_t value) {
    if (value >= INT32_MIN && value <= INT32_MAX) {
      pickle_ += 'J';
      detail::zip_put<uint32_t>(pickle_, static_cast<uint32_t>(static_cast<int32_t>(value)));
    } else {
      pickle_ += "\x8a\x08";
      detail::zip_put<uint64_t>(pickle_, static_cast<uint64_t>(value));
    }
  }
  void put_numbers(at::IntArrayRef numbers) {
    pickle_ += '(';
    for (const auto number : numbers) put_integer(number);
    pickle_ += 't';
  }
  void put_ordered_dict() {
    put_global("collections", "OrderedDict");
    pickle_ += ")R";
  }

  void put_tensor(const Tensor& tensor) {
    const auto& storage = storages_[index_.at(place_of(tensor))];
    const auto types = detail::torch_types();
    const auto type =
        std::find_if(types.begin(), types.end(), [&](const auto& t) { return t.type == tensor.scalar_type(); });
    LEVIN_CHECK(type != types.end(), "[torch_file] \"", where_, "\": a tensor of type ",
                c10::toString(tensor.scalar_type()), " cannot be written");
    put_global("torch._utils", type->storage ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    pickle_ += "((";
    put_text("storage");
    if (type->storage)
      put_global("torch", type->storage);
    else
      put_global("torch.storage", "UntypedStorage");
    put_text(std::to_string(storage.key));
    put_text("cpu");
    put_integer(storage.elements() * (type->storage ? 1 : static_cast<int64_t>(tensor.element_size())));
    pickle_ += "tQ";
    put_integer(storage.whole ? tensor.storage_offset() : 0);
    put_numbers(tensor.sizes());
    put_numbers(storage.whole ? tensor.strides() : at::IntArrayRef(c10::contiguous_strides(tensor.sizes())));
    pickle_ += '\x89';
    put_ordered_dict();
    if (!type->storage) put_global("torch", type->name);
    pickle_ += "tR";
  }

  void put_dict(const StateDict& dict, bool ordered) {
    if (ordered)
      put_ordered_dict();
    else
      pickle_ += '}';
    std::unordered_set<std::string_view> names;
    pickle_ += '(';
    for (const auto& [name, value] : dict) {
      LEVIN_CHECK(names.insert(name).second, "[torch_file] \"", where_, "\": two values named \"", name, "\"");
      put_text(name);
      put(value);
    }
    pickle_ += 'u';
  }

  void put_numbered(const StateDict& tree) {
    pickle_ += "}(";
    for (const auto& [name, value] : tree) {
      put_text(name);
      if (name != numbered_) {
        put(value);
        continue;
      }
      pickle_ += "}(";
      for (const auto& [number, item] : value.to_dict()) {
        int64_t index = 0;
        const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
        LEVIN_CHECK(error == std::errc() && end == number.data() + number.size(), "[torch_file] \"", where_, "\": \"",
                    number, "\" in \"", name, "\" is not the number of a parameter");
        put_integer(index);
        put(item);
      }
      pickle_ += 'u';
    }
    pickle_ += 'u';
  }

  void put(const StateValue& value) {
    const auto& held = value.variant();
    if (const auto* tensor = std::get_if<Tensor>(&held)) return put_tensor(*tensor);
    if (const auto* flag = std::get_if<bool>(&held)) {
      pickle_ += *flag ? '\x88' : '\x89';
    } else if (const auto* whole = std::get_if<int64_t>(&held)) {
      put_integer(*whole);
    } else if (const auto* real = std::get_if<double>(&held)) {
      pickle_ += 'G';
      detail::zip_put<uint64_t>(pickle_, __builtin_bswap64(std::bit_cast<uint64_t>(*real)));
    } else if (const auto* text = std::get_if<std::string>(&held)) {
      put_text(*text);
    } else if (const auto* list = std::get_if<StateList>(&held)) {
      pickle_ += "](";
      for (const auto& item : *list) put(item);
      pickle_ += 'e';
    } else if (const auto* dict = std::get_if<StateDict>(&held)) {
      put_dict(*dict, false);
    } else {
      pickle_ += 'N';
    }
  }

  AtomicFile file_;
  std::string where_;
  std::string_view numbered_;
  std::vector<WrittenStorage> storages_;
  std::unordered_map<std::string, size_t> index_;
  std::string pickle_;
};

}  // namespace

void write_torch_tree(const std::filesystem::path& path, const StateDict& tree) {
  TorchWriter(path).write(tree);
}

void write_torch_optimizer(const std::filesystem::path& path, const StateDict& state) {
  TorchWriter(path, "state").write(state);
}

void write_torch_file(const std::filesystem::path& path, const std::vector<std::pair<std::string, Tensor>>& tensors) {
  StateDict tree;
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    LEVIN_CHECK(names.insert(name).second, "[torch_file] \"", path.string(), "\": two tensors named \"", name, "\"");
    tree[name] = tensor;
  }
  write_torch_tree(path, tree);
}

}  // namespace levin
