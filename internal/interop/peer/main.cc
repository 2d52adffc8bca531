// tppeer is a process that speaks TensorPipe with the C++ library, for tests of
// other implementations to talk to.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <iostream>

#include "node.h"
#include "roles.h"

namespace {

// Exit codes.
constexpr int kOk = 0, kFailed = 1, kUsageError = 2, kStopped = 3;

// Stop is what the main thread waits for: the end of the role, of stdin, or a
// SIGTERM.
class Stop {
 public:
  // Threads inherit the mask: to be made before any of them.
  Stop() : finished_(eventfd(0, EFD_CLOEXEC)) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signal_ = signalfd(-1, &set, SFD_CLOEXEC);
  }

  // Takes note of how a pipe ended, and ends the process if it was the only one.
  void finish(const std::string& error, bool only) {
    if (!error.empty()) {
      std::cerr << "tppeer: " << error << std::endl;
      failed_ = true;
    }
    if (only) {
      eventfd_write(finished_, 1);
    }
  }

  // Whether the role came to its end.
  bool wait() {
    pollfd fds[] = {{finished_, POLLIN, 0}, {signal_, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    for (;;) {
      poll(fds, 3, -1);
      if (fds[0].revents) {
        return true;
      }
      char ignored[256];
      if (fds[1].revents || (fds[2].revents && read(STDIN_FILENO, ignored, sizeof(ignored)) <= 0)) {
        return false;
      }
    }
  }

  bool failed() const { return failed_; }

 private:
  int finished_, signal_;
  std::atomic<bool> failed_{false};
};

int run(const Flags& flags) {
  Stop stop;
  bool one = servesOne(flags);
  auto finish = [&stop, one](const std::string& error) { stop.finish(error, one); };
  std::atomic<bool> taken{false};
  // Last, so that it goes first: its end waits for the callbacks of all pipes.
  Node node(flags);
  if (flags.to.empty()) {
    printLine(node.listen([&](PipePtr pipe) {
      if (!one || !taken.exchange(true)) {
        play(flags, std::move(pipe), finish);
      }
    }));
  } else {
    play(flags, node.connect(), finish);
  }
  if (!stop.wait()) {
    return one ? kStopped : kOk;
  }
  return stop.failed() ? kFailed : kOk;
}

}  // namespace

int main(int argc, char** argv) {
  // The library writes to sockets without a word about this signal; a peer that
  // is gone must become an error of its pipe.
  signal(SIGPIPE, SIG_IGN);
  try {
    return run(parseFlags(argc, argv));
  } catch (const UsageError& error) {
    std::cerr << "tppeer: " << error.what() << "\n" << kUsage;
    return kUsageError;
  } catch (const std::exception& error) {
    std::cerr << "tppeer: " << error.what() << std::endl;
    return kFailed;
  }
}
