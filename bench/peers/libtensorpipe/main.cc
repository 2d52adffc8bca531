// tpbench measures the C++ library with the same loops and messages as package bench measures
// the Go library. server.cc describes the protocol between the two ends, client.h the
// measurements.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include "client.h"
#include "growth.h"
#include "server.h"

namespace {

// Ends the process when stdin ends, so that it does not outlive its parent.
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
  signal(SIGPIPE, SIG_IGN);  // the loss of a peer is an error of its pipe
  try {
    Flags flags = parseFlags(argc, argv);
    if (flags.role == "hub") {
      runHub(flags);  // reads stdin
    }
    watchParent();
    if (flags.role == "server") {
      serve(flags);
    } else if (flags.role == "echo") {
      serveEchoes(flags);
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
  } catch (const CorruptError& error) {
    std::cerr << "tpbench: " << error.what() << std::endl;
    _exit(4);
  } catch (const std::exception& error) {
    std::cerr << "tpbench: " << error.what() << std::endl;
    _exit(1);
  }
}
