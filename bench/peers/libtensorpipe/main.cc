// tpbench measures the C++ library: the same loop, on the same messages, as
// package bench runs on the Go library. server.cc says how the two ends talk,
// client.h what is measured.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include "client.h"
#include "server.h"

namespace {

// Ends the process when stdin ends: it must not outlive the one that started it.
void watchParent() {
  std::thread([] {
    char ignored[256];
    while (read(STDIN_FILENO, ignored, sizeof(ignored)) > 0) {
    }
    _exit(0);
  }).detach();
}

}  // namespace

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // a peer that is gone is an error of its pipe
  try {
    Flags flags = parseFlags(argc, argv);
    watchParent();
    if (flags.role == "server") {
      serve(flags);
    } else {
      measure(flags);
    }
    std::cout.flush();
    _exit(0);
  } catch (const UsageError& error) {
    std::cerr << "tpbench: " << error.what() << "\n" << kUsage;
    _exit(2);
  } catch (const UnviableError& error) {
    std::cerr << error.what() << std::endl;
    _exit(3);
  } catch (const std::exception& error) {
    std::cerr << "tpbench: " << error.what() << std::endl;
    _exit(1);
  }
}
