#include "levin/program/run_flags.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::cli {
namespace {

constexpr int kStaticPort = 29500;
constexpr int kRendezvousPort = 29400;

int number(const std::string& flag, const std::string& text, int least, int most = 1 << 30) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  LEVIN_CHECK(parsed.ec == std::errc() && parsed.ptr == end, "[levin run] ", flag, " \"", text,
              "\" is not a whole number");
  LEVIN_CHECK(value >= least && value <= most, "[levin run] ", flag, " ", value, " is out of range: ", least, " to ",
              most == 1 << 30 ? "any" : std::to_string(most));
  return value;
}

double seconds(const std::string& flag, const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  LEVIN_CHECK(parsed.ec == std::errc() && parsed.ptr == end && value >= 0 && value < 1e6, "[levin run] ", flag, " \"",
              text, "\" is not a number of seconds");
  return value;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

/// Hides the spellings with underscores, which are accepted as well.
class Help : public CLI::Formatter {
 public:
  Help() { column_width(34); }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: levin run [FLAGS] PROGRAM [ARGUMENTS OF THE PROGRAM]\n";
  }
  std::string make_option_name(const CLI::Option* option, bool) const override {
    std::vector<std::string> names;
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
    for (const auto& name : option->get_lnames())
      if (name.find('_') == std::string::npos) names.push_back("--" + name);
    return join(names);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_items_expected_max() == 0 ? "" : " " + option->get_type_name();
  }
};

/// The flags as words, before they are understood.
struct Flags {
  std::string nproc_per_node = "1", nnodes = "1", node_rank, master_addr, master_port, rdzv_endpoint,
              rdzv_backend = "static", rdzv_id = "none", rdzv_conf, max_restarts = "0", monitor_interval = "0.1",
              log_dir, redirects = "0", tee = "0", local_ranks_filter, role = "default", stop_grace = "5",
              save_grace = "600";
  bool standalone = false;
  bool no_python = false;

  void add_to(CLI::App& app) {
    value(app, "nproc-per-node", nproc_per_node, "N|auto|cpu|gpu", "ranks on this machine");
    value(app, "nnodes", nnodes, "N", "machines in the run");
    value(app, "node-rank", node_rank, "N", "which of them this is, from 0");
    value(app, "master-addr", master_addr, "HOST", "address of machine 0 (127.0.0.1)");
    value(app, "master-port", master_port, "PORT", "port on machine 0 (one machine: any free one, else 29500)");
    flag(app, "standalone", standalone, "one machine, any free port, whatever else is said");
    value(app, "rdzv-endpoint", rdzv_endpoint, "HOST:PORT",
          "where the machines meet; without --node-rank they agree on theirs");
    value(app, "rdzv-backend", rdzv_backend, "static|c10d", "both are Levin's own store");
    value(app, "rdzv-id", rdzv_id, "NAME", "name of the run, in log folders and variables");
    value(app, "rdzv-conf", rdzv_conf, "K=V,...", "join_timeout=SECONDS to wait for all machines (300)");
    value(app, "max-restarts", max_restarts, "N", "start all ranks again after a failure, up to N times");
    value(app, "monitor-interval", monitor_interval, "SECONDS", "accepted; ranks are watched without polling");
    value(app, "role", role, "NAME", "handed on as ROLE_NAME");
    value(app, "log-dir", log_dir, "FOLDER", "folder for log files");
    value(app, "redirects,-r", redirects, "N|R:N,...",
          "outputs to files: 0 none, 1 stdout, 2 stderr, 3 both; or by rank");
    value(app, "tee,-t", tee, "N|R:N,...", "outputs to files and to the console, as above");
    value(app, "local-ranks-filter", local_ranks_filter, "R,...", "show the output of these local ranks only");
    value(app, "stop-grace", stop_grace, "SECONDS", "time for ranks to end after a signal before they are killed (5)");
    value(app, "save-grace", save_grace, "SECONDS", "time for a rank to finish the checkpoint it is writing (600)");
    flag(app, "no-python", no_python, "accepted; programs are always started as they are");
  }

 private:
  static std::string names(const std::string& name) {
    const auto comma = std::min(name.find(','), name.size());
    auto underscored = name.substr(0, comma);
    std::string all = "--" + name;
    std::replace(underscored.begin(), underscored.end(), '-', '_');
    if (underscored != name.substr(0, comma)) all += ",--" + underscored;
    return all;
  }
  static std::string variable(const std::string& name) {
    auto upper = "PET_" + name.substr(0, name.find(','));
    std::transform(upper.begin(), upper.end(), upper.begin(), [](char c) { return c == '-' ? '_' : std::toupper(c); });
    return upper;
  }
  static void value(CLI::App& app, const std::string& name, std::string& target, const char* type, const char* text) {
    app.add_option(names(name), target, text)->type_name(type)->envname(variable(name))->take_last();
  }
  static void flag(CLI::App& app, const std::string& name, bool& target, const char* text) {
    app.add_flag(names(name), target, text)->envname(variable(name))->take_last();
  }
};

int ranks_here(const std::string& text, const Machine& machine) {
  if (text == "cpu") return machine.cores;
  if (text == "auto") return machine.gpus > 0 ? machine.gpus : machine.cores;
  if (text == "gpu") {
    LEVIN_CHECK(machine.gpus > 0,
                "[levin run] --nproc-per-node gpu: no GPU is usable here; give a number, cpu or auto");
    return machine.gpus;
  }
  LEVIN_CHECK(!text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-'),
              "[levin run] --nproc-per-node \"", text, "\" is not known; a whole number, auto, cpu or gpu");
  return number("--nproc-per-node", text, 1);
}

int node_count(const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) return number("--nnodes", text, 1);
  const int least = number("--nnodes", text.substr(0, colon), 1);
  const int most = number("--nnodes", text.substr(colon + 1), 1);
  LEVIN_CHECK(least == most, "[levin run] --nnodes ", text,
              ": the number of nodes cannot change while a run lasts; give one number");
  return least;
}

void place(LaunchSpec& spec, const Flags& flags) {
  const std::vector<std::string> backends{"static", "c10d"};
  if (std::find(backends.begin(), backends.end(), flags.rdzv_backend) == backends.end())
    fail_unknown("levin run", "--rdzv-backend", flags.rdzv_backend, backends);
  if (flags.standalone || spec.nnodes == 1) {
    LEVIN_CHECK(spec.nnodes == 1, "[levin run] --standalone is for one node, but --nnodes is ", spec.nnodes);
    spec.node_rank = flags.node_rank.empty() ? 0 : number("--node-rank", flags.node_rank, 0, 0);
    if (!flags.master_port.empty() && !flags.standalone)
      spec.master_port = number("--master-port", flags.master_port, 0, 65535);
  } else if (!flags.rdzv_endpoint.empty()) {
    LEVIN_CHECK(flags.master_addr.empty() && flags.master_port.empty(),
                "[levin run] give --rdzv-endpoint or --master-addr and --master-port, not both");
    spec.node_rank = flags.node_rank.empty() ? -1 : number("--node-rank", flags.node_rank, 0, spec.nnodes - 1);
    const auto colon = flags.rdzv_endpoint.rfind(':');
    const bool has_port = colon != std::string::npos && flags.rdzv_endpoint.find(']', colon) == std::string::npos;
    spec.master_addr = flags.rdzv_endpoint.substr(0, has_port ? colon : std::string::npos);
    if (spec.master_addr.starts_with('[') && spec.master_addr.ends_with(']'))
      spec.master_addr = spec.master_addr.substr(1, spec.master_addr.size() - 2);
    spec.master_port =
        has_port ? number("--rdzv-endpoint port", flags.rdzv_endpoint.substr(colon + 1), 1, 65535) : kRendezvousPort;
    LEVIN_CHECK(!spec.master_addr.empty(), "[levin run] --rdzv-endpoint \"", flags.rdzv_endpoint, "\" has no host");
  } else {
    LEVIN_CHECK(!flags.node_rank.empty(), "[levin run] --node-rank is not set; with --nnodes ", spec.nnodes,
                " each machine must be told its own (or give --rdzv-endpoint)");
    LEVIN_CHECK(!flags.master_addr.empty(), "[levin run] --master-addr is not set; with --nnodes ", spec.nnodes,
                " it must name machine 0 (MASTER_ADDR of the ranks)");
    spec.node_rank = number("--node-rank", flags.node_rank, 0, spec.nnodes - 1);
    spec.master_addr = flags.master_addr;
    spec.master_port = flags.master_port.empty() ? kStaticPort : number("--master-port", flags.master_port, 1, 65535);
  }
}

void read_conf(LaunchSpec& spec, const std::string& text) {
  const std::vector<std::string> known{"join_timeout",  "timeout",      "last_call_timeout",
                                       "close_timeout", "read_timeout", "is_host"};
  for (const auto& pair : split(text, ',')) {
    const auto equals = pair.find('=');
    const auto key = pair.substr(0, equals);
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail_unknown("levin run", "--rdzv-conf key", key, known);
    LEVIN_CHECK(equals != std::string::npos, "[levin run] --rdzv-conf \"", pair, "\" is not KEY=VALUE");
    if (key == "join_timeout" || key == "timeout")
      spec.join_timeout = std::chrono::milliseconds(
          static_cast<int64_t>(1000 * seconds("--rdzv-conf " + key, pair.substr(equals + 1))));
  }
}

LaunchSpec understand(const Flags& flags, const Machine& machine) {
  LaunchSpec spec;
  spec.nproc = ranks_here(flags.nproc_per_node, machine);
  spec.nnodes = node_count(flags.nnodes);
  place(spec, flags);
  read_conf(spec, flags.rdzv_conf);
  spec.max_restarts = number("--max-restarts", flags.max_restarts, 0);
  seconds("--monitor-interval", flags.monitor_interval);
  spec.run_id = flags.rdzv_id;
  LEVIN_CHECK(!spec.run_id.empty() && spec.run_id.find('/') == std::string::npos, "[levin run] --rdzv-id \"",
              spec.run_id, "\" must be a plain name");
  spec.role = flags.role;
  spec.log_dir = flags.log_dir;
  spec.redirects = parse_streams("--redirects", flags.redirects);
  spec.tee = parse_streams("--tee", flags.tee);
  for (const auto& rank : split(flags.local_ranks_filter, ','))
    spec.shown_local_ranks.push_back(number("--local-ranks-filter", rank, 0, spec.nproc - 1));
  spec.stop_grace = std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds("--stop-grace", flags.stop_grace)));
  spec.save_grace = std::chrono::milliseconds(static_cast<int64_t>(1000 * seconds("--save-grace", flags.save_grace)));
  return spec;
}

}  // namespace

StreamChoice parse_streams(const std::string& flag, const std::string& text) {
  StreamChoice choice;
  const auto which = [&](const std::string& word) {
    LEVIN_CHECK(word.size() == 1 && word[0] >= '0' && word[0] <= '3', "[levin run] ", flag, " \"", text, "\": \"", word,
                "\" is not one of 0 (none), 1 (stdout), 2 (stderr), 3 (both)");
    return word[0] - '0';
  };
  if (text.find(':') == std::string::npos) {
    choice.all = which(text);
    return choice;
  }
  for (const auto& pair : split(text, ',')) {
    const auto colon = pair.find(':');
    LEVIN_CHECK(colon != std::string::npos, "[levin run] ", flag, " \"", text, "\": \"", pair, "\" is not RANK:N");
    choice.by_local_rank[number(flag, pair.substr(0, colon), 0)] = which(pair.substr(colon + 1));
  }
  return choice;
}

std::optional<LaunchSpec> parse_run(const std::vector<std::string>& words, const Machine& machine) {
  CLI::App app(
      "Starts PROGRAM as several ranks and watches them. Takes torchrun's flags; each can also come from PET_<FLAG>.",
      "levin run");
  app.formatter(std::make_shared<Help>());
  app.prefix_command();
  Flags flags;
  flags.add_to(app);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them last first
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw Error(fmt::format("[levin run] {}", error.what()));
  }
  auto command = app.remaining();
  if (!command.empty() && command.front() == "--") command.erase(command.begin());
  LEVIN_CHECK(!command.empty(), "[levin run] no program was given (levin run [FLAGS] PROGRAM ...)");
  if (command.front().starts_with("-")) {
    std::vector<std::string> known;
    for (const auto* option : app.get_options())
      for (const auto& name : option->get_lnames())
        if (name.find('_') == std::string::npos) known.push_back("--" + name);
    fail_unknown("levin run", "flag", command.front().substr(0, command.front().find('=')), known);
  }
  auto spec = understand(flags, machine);
  spec.command = std::move(command);
  return spec;
}

}  // namespace levin::cli
