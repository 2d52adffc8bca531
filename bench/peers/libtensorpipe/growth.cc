#include "growth.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "node.h"

namespace tp = tensorpipe;

namespace {

using Clock = std::chrono::steady_clock;

int64_t nsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Lets the process open as many descriptors as it may.
void raiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// Echo sends back every message of a pipe, from the memory into which it was read, until the pipe ends.
class Echo : public std::enable_shared_from_this<Echo> {
 public:
  Echo(PipePtr pipe, const Flags& flags) : pipe_(std::move(pipe)), size_(flags.size), arena_("malloc") {
    arena_.resize(1, size_);
  }

  void next() {
    auto self = shared_from_this();
    pipe_->readDescriptor([this, self](const tp::Error& error, tp::Descriptor descriptor) {
      if (error) {
        pipe_->close();
        return;
      }
      pipe_->read(allocation(descriptor, arena_, 0, size_), [this, self](const tp::Error& error) {
        if (error) {
          pipe_->close();
          return;
        }
        pipe_->write(message(arena_, 0, size_, true), [this, self](const tp::Error& error) {
          if (error) {
            pipe_->close();
          }
        });
        next();
      });
    });
  }

 private:
  const PipePtr pipe_;
  const uint64_t size_;
  Arena arena_;
};

void acceptAll(tp::Listener& listener, const Flags& flags, const Outcome& outcome) {
  listener.accept([&listener, &flags, outcome](const tp::Error& error, PipePtr pipe) {
    if (outcome.failedOn(error)) {
      return;
    }
    std::make_shared<Echo>(std::move(pipe), flags)->next();
    acceptAll(listener, flags, outcome);
  });
}

// Lines has the lines of stdin, which a thread reads. The thread exits the process when stdin ends.
class Lines {
 public:
  Lines() {
    std::thread([this] {
      for (std::string line; std::getline(std::cin, line);) {
        std::lock_guard<std::mutex> lock(mutex_);
        lines_.push_back(line);
        arrived_.notify_one();
      }
      _exit(0);
    }).detach();
  }

  std::string next() {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait(lock, [this] { return !lines_.empty(); });
    std::string line = lines_.front();
    lines_.pop_front();
    return line;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::string> lines_;
};

class Hub {
 public:
  explicit Hub(const Flags& flags) : flags_(flags), context_(makeContext(flags)), source_("malloc"), echo_("malloc") {
    source_.resize(1, flags.size);
    echo_.resize(1, flags.size);
  }

  // Returns the answer to a line.
  std::string run(const std::string& line) {
    std::istringstream in(line.size() < 2 ? line : line.substr(1, line.size() - 2));
    std::string verb, url;
    uint64_t count = 0;
    int64_t micros = 0;
    if (!(in >> verb >> url >> count >> micros)) {
      throw UsageError("no request: " + line);
    }
    samples_.clear();
    if (verb == "open") {
      for (uint64_t i = 0; i < count; ++i) {
        pipes_.push_back(context_->connect(url));
        trips(pipes_.size() - 1, 1, false, 0);
      }
      samples_.clear();
    } else if (verb == "trim") {
      malloc_trim(0);
    } else if ((verb == "one" || verb == "turn") && !pipes_.empty()) {
      trips(0, count, verb == "turn", micros);
    } else {
      throw UsageError("no request: " + line);
    }
    return json();
  }

 private:
  // Makes count round trips, or fewer if they take longer than that time, from a pipe on: all on that
  // one, or each on the next one.
  void trips(size_t from, uint64_t count, bool inTurn, int64_t micros) {
    Outcome outcome;
    samples_.reserve(count);
    end_ = Clock::now() + std::chrono::microseconds(micros);
    trip(from, count, inTurn, outcome);
    outcome.wait();
    if (!difference_.empty()) {
      throw CorruptError("echo: " + difference_);
    }
  }

  void trip(size_t index, uint64_t left, bool inTurn, const Outcome& outcome) {
    source_.fill(0, number_);
    echo_.clear(1);
    tp::Pipe& pipe = *pipes_[index];
    tp::Message out = message(source_, 0, flags_.size, true);
    Clock::time_point start = Clock::now();
    pipe.write(std::move(out), [outcome](const tp::Error& error) { outcome.failedOn(error); });
    pipe.readDescriptor([=, &pipe](const tp::Error& error, tp::Descriptor descriptor) {
      if (outcome.failedOn(error)) {
        return;
      }
      tp::Allocation memory;
      try {
        memory = allocation(descriptor, echo_, 0, flags_.size);
      } catch (const std::exception& wrong) {
        outcome.fail(wrong.what());
        return;
      }
      pipe.read(std::move(memory), [=](const tp::Error& error) {
        if (outcome.failedOn(error)) {
          return;
        }
        samples_.push_back(nsSince(start));
        difference_ = echo_.difference(0, number_++);
        if (left <= 1 || !difference_.empty() || Clock::now() > end_) {
          outcome.done("");
        } else {
          trip(inTurn ? (index + 1) % pipes_.size() : index, left - 1, inTurn, outcome);
        }
      });
    });
  }

  std::string json() const {
    std::ostringstream out;
    out << "{\"rtt_ns\":[";
    for (size_t i = 0; i < samples_.size(); ++i) {
      out << (i > 0 ? "," : "") << samples_[i];
    }
    out << "]}";
    return out.str();
  }

  const Flags& flags_;
  std::unique_ptr<tp::Context> context_;
  std::vector<PipePtr> pipes_;
  Arena source_, echo_;
  uint64_t number_ = 0;
  std::vector<int64_t> samples_;
  std::string difference_;
  Clock::time_point end_;
};

}  // namespace

void serveEchoes(const Flags& flags) {
  raiseDescriptorLimit();
  Outcome outcome;
  auto context = makeContext(flags);
  auto listener = context->listen({flags.listen});
  acceptAll(*listener, flags, outcome);
  std::cout << "{\"urls\":[\"" << listener->url(flags.transport) << "\"]}" << std::endl;
  outcome.wait();
}

void runHub(const Flags& flags) {
  raiseDescriptorLimit();
  Lines* lines = new Lines;  // its thread may use it until the process exits
  Hub hub(flags);
  std::cout << "{}" << std::endl;
  while (true) {
    std::cout << hub.run(lines->next()) << std::endl;
  }
}
