// The end that replies.
#pragma once

#include "flags.h"

// Prints the URL to dial, serves the first pipe and returns when that ends.
void serve(const Flags& flags);
