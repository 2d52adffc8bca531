#include "flags.h"

#include <functional>
#include <map>
#include <set>
#include <sstream>

const char* const kUsage =
    "usage: tppeer ROLE (--listen URL[,URL] | --to URL) [flags]\n"
    "\n"
    "roles:\n"
    "  echo    sends every message back\n"
    "  sink    reads every message, prints a JSON line about each; with --count\n"
    "          it closes the pipe after that many\n"
    "  stall   reads one descriptor, prints a JSON line, never reads the rest\n"
    "  check   sends --count messages, compares what an echo sends back, closes\n"
    "          the pipe and prints a JSON line with totals\n"
    "  source  sends --count messages, prints a JSON line with totals and waits\n"
    "          for the reader to close the pipe\n"
    "\n"
    "With --listen the first line printed is the URL to dial (one for each URL\n"
    "given, separated by spaces). echo, sink and stall serve any number of pipes\n"
    "until stdin ends or SIGTERM comes; check and source serve the first one and\n"
    "end. With --to every role but stall ends with its pipe. Closing stdin ends\n"
    "all of them.\n"
    "\n"
    "flags:\n"
    "  --transport uv[,shm]            default uv\n"
    "  --channel basic[,mpt_uv][,cma][,xth]  default basic\n"
    "  --lanes N                       of mpt_uv, default 16\n"
    "  --name NAME                     of the context, default tppeer\n"
    "  --count N                       messages, default 1 to send, no end to read\n"
    "  --seed S                        of the messages, default 1\n"
    "  --size BYTES[,BYTES]            of every payload and tensor, default random; with\n"
    "                                  several, messages take turns\n"
    "  --payloads N, --tensors N       in each message, default random 0..4\n"
    "  --targets mixed|all|none        which tensors name cpu:0, default mixed\n"
    "  --both                          write all messages without waiting\n";

namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    parts.push_back(part);
  }
  return parts;
}

uint64_t number(const std::string& text) {
  size_t used = 0;
  uint64_t value = 0;
  try {
    value = std::stoull(text, &used);
  } catch (const std::exception&) {
  }
  if (used == 0 || used != text.size()) {
    throw UsageError("not a number: " + text);
  }
  return value;
}

std::vector<uint64_t> numbers(const std::string& text) {
  std::vector<uint64_t> out;
  for (const auto& part : split(text)) {
    out.push_back(number(part));
  }
  return out;
}

Targets targets(const std::string& text) {
  static const std::map<std::string, Targets> kNames{
      {"mixed", Targets::kMixed}, {"all", Targets::kAll}, {"none", Targets::kNone}};
  auto found = kNames.find(text);
  if (found == kNames.end()) {
    throw UsageError("not one of mixed, all, none: " + text);
  }
  return found->second;
}

using Setter = std::function<void(Flags&, const std::string&)>;

const std::map<std::string, Setter>& setters() {
  using F = Flags&;
  using S = const std::string&;
  static const std::map<std::string, Setter> kSetters{
      {"--listen", [](F f, S v) { f.listen = split(v); }},
      {"--to", [](F f, S v) { f.to = v; }},
      {"--name", [](F f, S v) { f.name = v; }},
      {"--transport", [](F f, S v) { f.transports = split(v); }},
      {"--channel", [](F f, S v) { f.channels = split(v); }},
      {"--lanes", [](F f, S v) { f.lanes = number(v); }},
      {"--count", [](F f, S v) { f.count = number(v); }},
      {"--seed", [](F f, S v) { f.seed = number(v); }},
      {"--size", [](F f, S v) { f.sizes = numbers(v); }},
      {"--payloads", [](F f, S v) { f.payloads = number(v); }},
      {"--tensors", [](F f, S v) { f.tensors = number(v); }},
      {"--targets", [](F f, S v) { f.targets = targets(v); }},
  };
  return kSetters;
}

}  // namespace

Flags parseFlags(int argc, char** argv) {
  if (argc < 2) {
    throw UsageError("no role given");
  }
  static const std::set<std::string> kRoles{"echo", "sink", "stall", "check", "source"};
  Flags flags;
  flags.role = argv[1];
  if (kRoles.count(flags.role) == 0) {
    throw UsageError("unknown role " + flags.role);
  }
  for (int i = 2; i < argc; ++i) {
    std::string name = argv[i];
    if (name == "--both") {
      flags.both = true;
      continue;
    }
    auto setter = setters().find(name);
    if (setter == setters().end() || i + 1 == argc) {
      throw UsageError("unknown flag, or no value for it: " + name);
    }
    setter->second(flags, argv[++i]);
  }
  if (flags.count == 0) {
    throw UsageError("--count must be at least 1");
  }
  if (flags.lanes < 1) {
    throw UsageError("--lanes must be at least 1");
  }
  if (flags.listen.empty() == flags.to.empty()) {
    throw UsageError("need one of --listen and --to");
  }
  return flags;
}
