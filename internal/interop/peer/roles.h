// What a peer does with a pipe.
#pragma once

#include "flags.h"
#include "node.h"

// Called once with "" or what went wrong, when a role is done with its pipe.
using Finish = std::function<void(const std::string& error)>;

// Starts the role of the flags on a pipe. It runs on threads of the library;
// the flags must stay.
void play(const Flags& flags, PipePtr pipe, Finish finish);

// Whether the role serves one pipe and then ends, rather than any number.
bool servesOne(const Flags& flags);

// Prints a line on stdout, whole and at once.
void printLine(const std::string& line);
