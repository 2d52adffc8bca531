// The roles of a peer.
#pragma once

#include "flags.h"
#include "node.h"

// Called once when a role has finished with its pipe, with an error or "".
using Finish = std::function<void(const std::string& error)>;

// Starts the role of the flags on a pipe. It runs on threads of the library. The
// flags must outlive it.
void play(const Flags& flags, PipePtr pipe, Finish finish);

// Whether the process ends after one pipe.
bool servesOne(const Flags& flags);

// Prints a line on stdout and flushes it. Safe for concurrent use.
void printLine(const std::string& line);
