#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/generate/options.h"
#include "levin/generate/serve/server.h"
#include "levin/models/folder.h"
#include "levin/program/command.h"
#include "levin/program/commands/draft_flags.h"
#include "levin/program/commands/generate/generate_input.h"
#include "levin/program/commands/model_flags.h"
#include "levin/program/commands/placement_flags.h"
#include "levin/program/commands/read_model.h"
#include "levin/program/commands/tensor_ranks.h"

namespace levin::cli {
namespace {

/// SIGINT and SIGTERM, taken by one thread: every thread that is started after this has them blocked.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~StopSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// 0: none came in time.
  int wait(std::chrono::milliseconds most) const {
    const timespec time{.tv_sec = 0, .tv_nsec = most.count() * 1'000'000};
    return std::max(sigtimedwait(&signals_, nullptr, &time), 0);
  }

 private:
  sigset_t signals_, before_;
};

struct Serve {
  std::string folder, max_request_size = "4MiB";
  ModelFlags model_flags;
  PlacementFlags placement_flags;
  TensorRanksFlag tensor{"levin serve"};
  DraftFlags draft;
  ServeOptions options;
  int64_t read_timeout = options.read_timeout.count(), shutdown_timeout = options.shutdown_timeout.count();
  bool no_graphs = false, no_prefix_reuse = false;
  /// Beside weights that do not all fit the cache has this many tokens for each of max-rows, unless it is told.
  static constexpr int64_t kPlacedRow = 1024;
  /// Behind shutdown_timeout, for ranks to end.
  static constexpr std::chrono::seconds kLastWords{5};

  void describe(Flags& flags) {
    auto& o = options;
    flags.argument("MODEL", folder, "a model folder of transformers: config.json, weights, tokenizer");
    flags.flag("host", o.host, "the address to listen on; 0.0.0.0: every network of this machine", "ADDRESS");
    flags.flag("port", o.port, "0: any that is free", "N");
    flags.flag("api-key", o.api_key, "what clients must send [the variable LEVIN_API_KEY; none: anyone may ask]",
               "KEY");
    flags.flag("name", o.model_name, "under which clients ask for the model [the name of the folder]", "NAME");
    flags.flag("max-rows", o.engine.max_rows, "texts that are written together", "N");
    flags.flag("cache-tokens", o.engine.cache_tokens,
               "tokens whose keys and values are kept; 0: what fits, or 1024 a row with --device-map", "N");
    flags.flag("cache-dtype", o.engine.cache_dtype, "of keys and values", "NAME", {"auto", "int8", "fp8"});
    flags.flag("prefill-chunk", o.engine.prefill_chunk, "tokens of prompts between two steps", "N");
    flags.flag("max-queue", o.max_queue, "texts that wait; one more is refused with 429", "N");
    flags.flag("max-tokens", o.max_tokens, "new tokens of a request, at most", "N");
    flags.flag("max-connections", o.max_connections, "connections that are served at once", "N");
    flags.flag("max-request-size", max_request_size, "of the body of a request", "BYTES");
    flags.flag("read-timeout", read_timeout, "for a request to come in whole", "SECONDS");
    flags.flag("shutdown-timeout", shutdown_timeout, "for requests that run when the server is told to stop",
               "SECONDS");
    model_flags.describe(flags);
    placement_flags.describe(flags);
    tensor.describe(flags);
    draft.describe(flags);
    flags.flag("no-graphs", no_graphs, "on CUDA: no graph of a step is captured");
    flags.flag("no-prefix-reuse", no_prefix_reuse, "what prompts have in common is computed for each");
    flags.set_epilog(
        "Serves OpenAI's interface: /v1/completions, /v1/chat/completions, /v1/embeddings, /v1/models; /health, "
        "/metrics;\n"
        "and a page to chat at /. Ctrl-C, or SIGTERM, ends it when running requests are done; a second one at once.\n");
  }

  int run(const Args& args) {
    tensor.look();
    // Before any thread is started. Ranks other than 0 have signals blocked too: they end when rank 0 does.
    std::optional<StopSignals> signals;
    if (!tensor.starts_ranks()) signals.emplace();
    read_options();
    model_flags.device = placement_flags.device(model_flags.device);
    auto asked = model_flags.options("levin serve");
    // Everything that can be wrong is found before the weights are read.
    const auto sizes = models::open_model_meta(folder, asked);
    if (sizes.encoder) asked.head = "none";
    check_ranks(sizes);
    LEVIN_CHECK(sizes.decoder || !draft.used(), "[levin serve] --prompt-lookup and --draft-model are for models that ",
                "generate; \"", folder, "\" is a ", sizes.model_type);
    if (sizes.decoder) draft.check("levin serve", asked, sizes.body());
    GenerateInput source(folder, false, sizes.body().vocab_size);
    std::optional<text::Tokenizer> tokenizer;
    if (const auto* found = source.tokenizer()) tokenizer = *found;
    if (tensor.starts_ranks()) return tensor.start(args, options.shutdown_timeout + kLastWords);
    const auto placement = place(sizes, asked.device);
    asked.ranks = tensor.join(asked.device);
    int status = 0;
    among_ranks(asked.ranks, [&] {
      auto model = read_model("levin serve", folder, asked, placement_flags, placement);
      if (!tensor.is_first()) {
        follow_engine(model.decoder);
        return;
      }
      options.engine.draft = draft.open(asked);
      Server server(std::move(model), std::move(tokenizer), options);
      tell(server, sizes);
      status = serve(server, *signals);
    });
    return status;
  }

 private:
  void read_options() {
    const char* key = std::getenv("LEVIN_API_KEY");
    if (options.api_key.empty() && key) options.api_key = key;
    options.max_request_bytes = ByteCount(max_request_size).bytes;
    options.read_timeout = std::chrono::seconds(read_timeout);
    options.shutdown_timeout = std::chrono::seconds(shutdown_timeout);
    options.engine.cuda_graphs = !no_graphs;
    options.engine.prefix_reuse = !no_prefix_reuse;
    options.engine.prompt_lookup = draft.prompt_lookup;
    options.engine.draft_tokens = draft.draft_tokens;
    options.engine.max_queue = std::max(options.engine.max_queue, options.max_queue);
    check_options(options);
    check_options(options.engine);
  }

  void check_ranks(const models::LanguageModel& sizes) const {
    if (!tensor.is_used()) return;
    LEVIN_CHECK(sizes.decoder, "[levin serve] --tensor-parallel is for models that generate; \"", folder, "\" is a ",
                sizes.model_type);
    LEVIN_CHECK(!placement_flags.used(),
                "[levin serve] --tensor-parallel does not go with --device-map, --max-memory or --offload-folder");
    tensor.check(sizes);
  }

  /// The cache has its size before weights are placed beside it.
  std::optional<WeightPlacement> place(const models::LanguageModel& sizes, c10::Device device) {
    if (!placement_flags.used()) return {};
    LEVIN_CHECK(sizes.decoder, "[levin serve] --device-map and --max-memory are for models that generate; \"", folder,
                "\" is a ", sizes.model_type);
    auto& engine = options.engine;
    const auto row = std::min<int64_t>(sizes.body().max_positions, kPlacedRow);
    if (engine.cache_tokens == 0) engine.cache_tokens = engine.max_rows * row;
    const DecodeSizes needed{.rows = engine.max_rows,
                             .capacity = (engine.cache_tokens + engine.max_rows - 1) / engine.max_rows,
                             .prefill_chunk = engine.prefill_chunk};
    return placement_flags.place("levin serve", sizes, device, needed);
  }

  void tell(const Server& server, const models::LanguageModel& sizes) const {
    const bool is_local = options.host.starts_with("127.") || options.host == "localhost" || options.host == "::1";
    if (!is_local && options.api_key.empty())
      log_warning("anyone who reaches this address may use the model; --api-key asks for a key");
    if (const auto unused = unused_generation_settings(folder); sizes.decoder && !unused.empty())
      log_info(
          fmt::format("generation_config.json of the model is not obeyed: {}; requests say what counts", join(unused)));
    log_info(fmt::format("{} ({}) at {}", folder, sizes.model_type, server.url()));
    // For scripts: the address alone.
    std::puts(server.url().c_str());
    std::fflush(stdout);
  }

  static int serve(Server& server, const StopSignals& signals) {
    std::exception_ptr wrong;
    std::atomic<bool> ended = false;
    std::thread serving([&] {
      try {
        server.run();
      } catch (...) {
        wrong = std::current_exception();
      }
      ended = true;
    });
    while (!ended && signals.wait(std::chrono::milliseconds(200)) == 0) {
    }
    if (ended) {
      serving.join();
      if (wrong) std::rethrow_exception(wrong);
      return 0;
    }
    log_info("stopping; a second signal ends it at once");
    std::atomic<bool> done = false;
    std::thread stopping([&] {
      server.stop();
      serving.join();
      done = true;
    });
    while (!done)
      if (const int again = signals.wait(std::chrono::milliseconds(20))) _exit(128 + again);
    stopping.join();
    if (wrong) std::rethrow_exception(wrong);
    log_info("stopped");
    return 0;
  }
};

}  // namespace

Command serve_command() {
  return make_command<Serve>("serve", "serve a language model over HTTP, as OpenAI's interface does");
}

}  // namespace levin::cli
