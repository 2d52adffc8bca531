// tppeer is a peer on the C++ TensorPipe library, for tests of other implementations.
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

// Stop waits for the end of the role, the end of stdin, or a SIGTERM.
class Stop {
 public:
  // Must be constructed before any thread starts, since threads inherit the signal mask.
  Stop() : finished_(eventfd(0, EFD_CLOEXEC)) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signal_ = signalfd(-1, &set, SFD_CLOEXEC);
  }

  // Records the result of a pipe, and ends the process if it was the only one.
  void finish(const std::string& error, bool only) {
    if (!error.empty()) {
      std::cerr << "tppeer: " << error << std::endl;
      failed_ = true;
    }
    if (only) {
      eventfd_write(finished_, 1);
    }
  }

  // Returns true at the end of the role, and false at the end of stdin or a SIGTERM.
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
  std::atomic<bool> accepted{false};
  // Declared last, so that it is destroyed first: its destructor waits for the
  // callbacks of all pipes.
  Node node(flags);
  if (flags.to.empty()) {
    printLine(node.listen([&](PipePtr pipe) {
      if (!one || !accepted.exchange(true)) {
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
  // The library does not suppress SIGPIPE. Writing to a peer that died must be an error
  // of its pipe.
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
