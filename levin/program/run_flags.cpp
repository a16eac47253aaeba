#include "levin/program/run_flags.h"

#include <algorithm>
#include <charconv>
#include <sstream>

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

/// The values of the flags as words, before they are understood.
struct RunWords {
  std::string nproc_per_node = "1", nnodes = "1", node_rank, master_addr, master_port, rdzv_endpoint,
              rdzv_backend = "static", rdzv_id = "none", rdzv_conf, max_restarts = "0", monitor_interval = "0.1",
              log_dir, redirects = "0", tee = "0", local_ranks_filter, role = "default", stop_grace = "5",
              save_grace = "600";
  bool standalone = false;
  bool no_python = false;
  std::vector<std::string> command;

  void describe(Flags& flags) {
    flags.set_rest("PROGRAM [ARGUMENTS OF THE PROGRAM]", command);
    flags.set_environment("PET");
    flags.set_epilog(
        "The flags are torchrun's. Each can be set by the environment too:\nPET_NPROC_PER_NODE, PET_NNODES, ...\n");
    auto& nproc = flags.flag("nproc-per-node", nproc_per_node, "ranks on this node: auto is one per GPU, else per core",
                             "N|auto|cpu|gpu", {"auto", "cpu", "gpu"});
    nproc.words_are_hints = true;
    flags.flag("nnodes", nnodes, "number of nodes", "N");
    flags.flag("node-rank", node_rank, "rank of this node, from 0", "N");
    flags.flag("master-addr", master_addr, "address of node 0 [127.0.0.1]", "HOST");
    flags.flag("master-port", master_port, "port on node 0 [one node: any free port, else 29500]", "PORT");
    flags.flag("standalone", standalone, "one node, on any free port; overrides the rendezvous flags");
    flags.flag("rdzv-endpoint", rdzv_endpoint, "rendezvous address; without --node-rank the nodes agree on their ranks",
               "HOST:PORT");
    flags.flag("rdzv-backend", rdzv_backend, "accepted; both are Levin's own store", "NAME", {"static", "c10d"});
    flags.flag("rdzv-id", rdzv_id, "name of the run, in log folders and variables", "NAME");
    flags.flag("rdzv-conf", rdzv_conf, "join_timeout=SECONDS to wait for all nodes [300]", "K=V,...");
    flags.flag("max-restarts", max_restarts, "restart all ranks after a failure, up to N times", "N");
    flags.flag("monitor-interval", monitor_interval, "accepted; ranks are watched without polling", "SECONDS");
    flags.flag("role", role, "passed to the ranks as ROLE_NAME", "NAME");
    flags.flag("log-dir", log_dir, "folder for log files", "FOLDER");
    const char* streams = "N|R:N,...";
    flags
        .flag("redirects", redirects, "redirect to log files: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank",
              streams)
        .aliases = {"r"};
    flags.flag("tee", tee, "write to log files and to the console, values as above", streams).aliases = {"t"};
    flags.flag("local-ranks-filter", local_ranks_filter, "print the output of these local ranks only", "R,...");
    flags.flag("stop-grace", stop_grace, "time for ranks to end after a signal before they are killed", "SECONDS");
    flags.flag("save-grace", save_grace, "time for a rank to finish the checkpoint it is writing", "SECONDS");
    flags.flag("no-python", no_python, "accepted; programs are always started as they are");
  }
};

Flags flags_of(RunWords& words) {
  Flags flags("levin run", kRunSummary);
  words.describe(flags);
  return flags;
}

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

void place(LaunchSpec& spec, const RunWords& flags) {
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
                " each node must be given its own (or give --rdzv-endpoint)");
    LEVIN_CHECK(!flags.master_addr.empty(), "[levin run] --master-addr is not set; with --nnodes ", spec.nnodes,
                " it must name node 0 (MASTER_ADDR of the ranks)");
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

LaunchSpec understand(const RunWords& flags, const Machine& machine) {
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

Flags run_flags() {
  static RunWords words;  // the fields point into it
  return flags_of(words);
}

std::optional<LaunchSpec> parse_run(const std::vector<std::string>& words, const Machine& machine) {
  RunWords flags;
  if (!flags_of(flags).parse(words)) return std::nullopt;
  LEVIN_CHECK(!flags.command.empty(), "[levin run] no program was given (levin run [FLAGS] PROGRAM ...)");
  auto spec = understand(flags, machine);
  spec.command = std::move(flags.command);
  return spec;
}

}  // namespace levin::cli
