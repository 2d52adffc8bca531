// The end that answers.
#pragma once

#include "flags.h"

// Prints the URL to dial, serves the first pipe and returns when it ends.
void serve(const Flags& flags);
