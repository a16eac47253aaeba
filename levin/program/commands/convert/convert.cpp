#include <algorithm>
#include <cstdio>
#include <optional>

#include <fmt/format.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/weights/libtorch.h"
#include "levin/models/folder.h"
#include "levin/program/command.h"
#include "levin/program/commands/convert/convert_plan.h"
#include "levin/program/commands/name_patterns.h"

namespace levin::cli {
namespace {

struct Convert : ConvertFlags {
  void describe(Flags& flags) {
    const auto schemes = std::vector<std::string>(models::naming_schemes().begin(), models::naming_schemes().end());
    auto formats = levin::detail::written_formats();
    formats.emplace_back("checkpoint");
    formats.emplace_back("model");
    flags.argument("SRC", source,
                   "a weight file (" + join(levin::detail::weight_endings()) +
                       "), an index of several, a folder with one of these, or a checkpoint, full or sharded");
    flags.argument("DST", target, "a file; a folder with --shard-bytes, --to checkpoint or --to model");
    flags.flag("to", to,
               "format [by the ending of DST]; libtorch is what torch::load of C++ opens, checkpoint writes a full "
               "checkpoint from a sharded one, model a model "
               "folder of transformers from another one, with its config and tokenizer",
               "FORMAT", formats);
    flags.flag("dtype", dtype, "cast all floating-point tensors", "DTYPE", {"float32", "bfloat16", "float16"});
    flags.flag("naming", naming, "rename the weights of a ViT, ResNet or decoder (GPT-2, Llama)", "SCHEME", schemes);
    flags.flag("from-naming", from_naming, "naming scheme of SRC [detected]", "SCHEME", schemes);
    flags.repeated("select", select, "only names of SRC that match; repeatable; !GLOB excludes", "GLOB");
    flags.flag("strip-prefix", strip_prefix,
               "remove this prefix from names, before renaming [\"module.\" if all names of a torch file have it]",
               "PREFIX");
    flags.flag("add-prefix", add_prefix, "add this prefix to names, after renaming", "PREFIX");
    flags.flag("shard-bytes", shard_bytes, "split into files of at most N bytes (5GB, 500MB) with an index", "N");
    flags.flag("root", root,
               "key to convert: of a torch file (state_dict), of a checkpoint (model); \"\" takes everything", "KEY");
    flags.flag(
        "like", like,
        "with --to libtorch: a file of torch::save(net) of the same module, whose modules without weights (ReLU, "
        "Dropout) torch::load will ask for",
        "FILE");
    flags.flag("overwrite", overwrite, "replace DST");
    flags.set_epilog("No code in a file is ever executed. DST appears once it is complete.\n");
  }

  int run() {
    if (to == "checkpoint") return convert_checkpoint();
    if (to == "model") return convert_model();
    const auto& format = target_format();
    LEVIN_CHECK(like.empty() || format.word == "libtorch", "[levin convert] --like goes with --to libtorch");
    if (format.word == "libtorch" && convert_optimizer()) return 0;
    const bool is_folder = shard_bytes.bytes > 0;
    LEVIN_CHECK(!is_folder || !format.stem.empty(), "[levin convert] --to ", format.word,
                " writes one file, which torch::load reads whole; leave --shard-bytes out");
    check_convert_target(target, is_folder, overwrite);
    // A prefix or pattern that is given speaks of the names as SRC has them.
    const bool strips_module = !strip_prefix && !name_module_prefix(select);
    const WeightSource file(source, root, strips_module);
    const auto items = plan_conversion(file, *this);
    file.verify();
    uint64_t total = 0;
    for (const auto& item : items) total += item.bytes;
    size_t files = 1;
    {
      ProgressBar bar("converting", static_cast<int64_t>(total), {.unit = "B", .keep = false});
      const DropBar drop(bar);
      if (is_folder)
        files = write_shards(file, items, target, format, shard_bytes.bytes, bar);
      else if (format.word == "libtorch")
        write_for_libtorch(target, file, items, modules_without_tensors(), bar);
      else
        write_items(target, file, items, format, bar);
    }
    fmt::print("{}: {}, {}, {} of {}\n", target, counted(static_cast<int64_t>(items.size()), "tensor"),
               format_bytes(static_cast<double>(total)), counted(static_cast<int64_t>(files), "file"), format.word);
    if (!file.stripped().empty())
      fmt::print("the prefix \"{0}\" of all names in {1} was removed (--add-prefix {0} keeps it)\n", file.stripped(),
                 file.path().string());
    return 0;
  }

 private:
  const levin::detail::WeightFormat& target_format() const {
    if (!to.empty()) return *levin::detail::find_weight_format(to);
    if (const auto* format = levin::detail::weight_format_by_ending(target); format && format->write) return *format;
    LEVIN_CHECK(shard_bytes.bytes > 0, "[levin convert] \"", target,
                "\" does not tell the format by its ending; say --to ",
                join(levin::detail::written_formats(), " or --to "));
    return levin::detail::weight_formats().front();
  }

  /// Flags that change names, and `others`, are not given.
  void check_unused(const char* format, const char* what, std::vector<std::pair<const char*, bool>> others) const {
    others.insert(others.end(), {{"--naming", !naming.empty()},
                                 {"--from-naming", !from_naming.empty()},
                                 {"--select", !select.empty()},
                                 {"--strip-prefix", strip_prefix.has_value()},
                                 {"--add-prefix", !add_prefix.empty()},
                                 {"--root", root != "auto"}});
    for (const auto& [flag, is_given] : others)
      LEVIN_CHECK(!is_given, "[levin convert] --to ", format, " takes all of ", what, " as it is; leave ", flag,
                  " out");
  }

  /// `--to model`: opened and saved again.
  int convert_model() const {
    check_unused("model", "a model", {});
    check_destination("levin convert", target, OutputKind::kFolder, overwrite, "--overwrite");
    models::OpenModelOptions options;
    if (!dtype.empty()) options.dtype = dtype_from_name("levin convert", dtype);
    const auto model = models::open_model(source, options);
    models::SaveModelOptions saving{.overwrite = overwrite};
    if (shard_bytes.bytes > 0) saving.max_shard_size = shard_bytes.bytes;
    models::save_model(model, target, saving);
    const WeightFile written(target);
    fmt::print("{}: {} in {}, {}, {}\n", target, model.model_type, dtype_name(model.dtype),
               format_bytes(static_cast<double>(written.bytes())),
               counted(static_cast<int64_t>(written.files().size()), "file"));
    return 0;
  }

  /// torch::load wants every module of the file's module, those without tensors too. Only a file of LibTorch knows
  /// them.
  std::vector<std::string> modules_without_tensors() const {
    if (!like.empty()) {
      LEVIN_CHECK(levin::detail::is_libtorch_file(like), "[levin convert] --like \"", like,
                  "\" is no file of LibTorch's torch::save");
      return libtorch_modules(like);
    }
    const bool renamed = !naming.empty() || strip_prefix || !add_prefix.empty() || root != "auto";
    return renamed || !levin::detail::is_libtorch_file(source) ? std::vector<std::string>() : libtorch_modules(source);
  }

  /// `--to libtorch` of an optimizer in a checkpoint, for torch::load(optimizer, path). False: SRC is none.
  bool convert_optimizer() const {
    if (!levin::detail::looks_like_checkpoint(source) || root.empty()) return false;
    const levin::detail::CheckpointReader reader(source);
    const auto key = reader.choose_key("levin convert", root == "auto" ? "" : root, "--root NAME");
    if (!reader.is_dict(key)) return false;
    const auto names = reader.list(key);
    const bool has_groups =
        std::any_of(names.begin(), names.end(), [](const auto& item) { return item.first.starts_with("state."); });
    if (!has_groups) return false;
    const auto state = reader.read(key).to_dict();
    if (!state.contains("param_groups")) return false;
    for (const auto& [flag, is_given] :
         std::initializer_list<std::pair<const char*, bool>>{{"--dtype", !dtype.empty()},
                                                             {"--naming", !naming.empty()},
                                                             {"--select", !select.empty()},
                                                             {"--strip-prefix", strip_prefix.has_value()},
                                                             {"--add-prefix", !add_prefix.empty()},
                                                             {"--shard-bytes", shard_bytes.bytes > 0}})
      LEVIN_CHECK(!is_given, "[levin convert] the state of an optimizer is converted as it is; leave ", flag, " out");
    check_destination("levin convert", target, OutputKind::kFile, overwrite, "--overwrite");
    verify_with_progress(reader);
    write_libtorch_optimizer(target, state);
    fmt::print("{}: the state of an optimizer, {} of libtorch\n", target,
               counted(static_cast<int64_t>(names.size()), "tensor"));
    return true;
  }

  /// `--to checkpoint`: the whole training state, to resume from.
  int convert_checkpoint() const {
    check_unused("checkpoint", "a checkpoint", {{"--dtype", !dtype.empty()}, {"--shard-bytes", shard_bytes.bytes > 0}});
    LEVIN_CHECK(levin::detail::looks_like_checkpoint(source), "[levin convert] \"", source,
                "\" is not a checkpoint, so --to checkpoint can do nothing with it");
    check_destination("levin convert", target, OutputKind::kFolder, overwrite, "--overwrite");
    consolidate();
    const levin::detail::CheckpointReader written(target);
    uint64_t total = 0;
    for (const auto& tensor : written.manifest().tensors) total += written.like(tensor.id).nbytes();
    fmt::print("{}: {}, {}, a checkpoint with {}\n", target,
               counted(static_cast<int64_t>(written.manifest().tensors.size()), "tensor"),
               format_bytes(static_cast<double>(total)), join(written.keys()));
    return 0;
  }

  void consolidate() const {
    std::optional<ProgressBar> bar;
    std::optional<DropBar> drop;
    uint64_t before = 0;
    const auto progress = [&](uint64_t done, uint64_t all) {
      if (!bar)
        drop.emplace(bar.emplace("converting", static_cast<int64_t>(all), ProgressOptions{.unit = "B", .keep = false}));
      bar->advance(static_cast<int64_t>(done - before));
      before = done;
    };
    consolidate_checkpoint(source, target, {.progress = progress});
  }
};

}  // namespace

Command convert_command() {
  return make_command<Convert>("convert", "convert weights to another file format, dtype or naming scheme");
}

}  // namespace levin::cli
