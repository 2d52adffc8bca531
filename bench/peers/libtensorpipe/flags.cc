#include "flags.h"

#include <functional>
#include <map>

const char* const kUsage =
    "usage: tpbench server --listen URL [path] [--buffers B]\n"
    "       tpbench client --to URL [path] [--buffers B] [flags]\n"
    "       tpbench echo --listen URL [path]\n"
    "       tpbench hub [path]\n"
    "\n"
    "The server prints the URL to dial and serves one pipe. The client prints one\n"
    "JSON line with its samples. Both end when stdin does. The exit status is 3\n"
    "where the path does not work on this machine. An echo sends back all messages\n"
    "of any number of pipes; a hub opens them and makes round trips as the lines of\n"
    "stdin request.\n"
    "\n"
    "path:\n"
    "  --transport T     uv or shm, default uv\n"
    "  --channel C       basic, mpt_uv or cma, default basic\n"
    "  --lanes N         connections of mpt_uv, default 16\n"
    "\n"
    "  --buffers B       memory of the messages: huge (pages) or malloc, default huge\n"
    "\n"
    "flags of the client:\n"
    "  --size BYTES      of the tensor, 0 for messages without one; default 8\n"
    "  --named           name the target device\n"
    "  --depth N         messages in flight one way, default 8\n"
    "  --batch N         messages between two pauses, in which all bytes are checked\n"
    "  --round-trips N   warm round trips\n"
    "  --cold-trips N    round trips after idleness\n"
    "  --idle-us N       that idleness, default 2000\n"
    "  --one-way N       messages one way\n";

namespace {

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

using Setter = std::function<void(Flags&, const std::string&)>;

const std::map<std::string, Setter>& setters() {
  using F = Flags&;
  using S = const std::string&;
  static const std::map<std::string, Setter> kSetters{
      {"--listen", [](F f, S v) { f.listen = v; }},
      {"--to", [](F f, S v) { f.to = v; }},
      {"--transport", [](F f, S v) { f.transport = v; }},
      {"--channel", [](F f, S v) { f.channel = v; }},
      {"--lanes", [](F f, S v) { f.lanes = number(v); }},
      {"--buffers", [](F f, S v) { f.buffers = v; }},
      {"--size", [](F f, S v) { f.size = number(v); }},
      {"--depth", [](F f, S v) { f.depth = number(v); }},
      {"--batch", [](F f, S v) { f.batch = number(v); }},
      {"--round-trips", [](F f, S v) { f.roundTrips = number(v); }},
      {"--cold-trips", [](F f, S v) { f.coldTrips = number(v); }},
      {"--idle-us", [](F f, S v) { f.idleUs = number(v); }},
      {"--one-way", [](F f, S v) { f.oneWay = number(v); }},
  };
  return kSetters;
}

void check(const Flags& flags) {
  const bool listens = flags.role == "server" || flags.role == "echo";
  const bool dials = flags.role == "client";
  if (!listens && !dials && flags.role != "hub") {
    throw UsageError("unknown role " + flags.role);
  }
  if (listens == flags.listen.empty() || dials == flags.to.empty()) {
    throw UsageError("a server or echo needs --listen, a client --to");
  }
  if (flags.depth == 0 || flags.batch == 0) {
    throw UsageError("--depth and --batch must be at least 1");
  }
  if (flags.lanes == 0 || flags.lanes > 128) {
    throw UsageError("--lanes must be 1 to 128");
  }
  if (flags.buffers != "huge" && flags.buffers != "malloc") {
    throw UsageError("unknown buffers " + flags.buffers);
  }
}

}  // namespace

Flags parseFlags(int argc, char** argv) {
  if (argc < 2) {
    throw UsageError("no role given");
  }
  Flags flags;
  flags.role = argv[1];
  for (int i = 2; i < argc; ++i) {
    std::string name = argv[i];
    if (name == "--named") {
      flags.named = true;
      continue;
    }
    auto setter = setters().find(name);
    if (setter == setters().end() || i + 1 == argc) {
      throw UsageError("unknown flag, or no value for it: " + name);
    }
    setter->second(flags, argv[++i]);
  }
  check(flags);
  return flags;
}
