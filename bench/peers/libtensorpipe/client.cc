#include "client.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>
#include <thread>

#include "node.h"

namespace tp = tensorpipe;

namespace {

using Clock = std::chrono::steady_clock;
using Samples = std::vector<int64_t>;

int64_t nsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Sends a control message and waits until it has been sent.
void sendControl(tp::Pipe& pipe, const std::string& text) {
  Outcome outcome;
  pipe.write(controlMessage(text), [outcome](const tp::Error& error) {
    if (!outcome.failedOn(error)) {
      outcome.done("");
    }
  });
  outcome.wait();
}

// Receives the next control message. On the library's thread, first runs when its descriptor
// has arrived, and then when it has been read.
void receiveControl(
    tp::Pipe& pipe,
    const Outcome& outcome,
    std::function<void()> first = [] {},
    std::function<void(const std::string&)> then = [](const std::string&) {}) {
  pipe.readDescriptor([&pipe, outcome, first, then](const tp::Error& error, tp::Descriptor descriptor) {
    if (outcome.failedOn(error)) {
      return;
    }
    first();
    if (!descriptor.tensors.empty()) {
      outcome.fail("unexpected message");
      return;
    }
    std::string text = descriptor.metadata;
    pipe.read(tp::Allocation(), [outcome, text, then](const tp::Error& error) {
      if (!outcome.failedOn(error)) {
        then(text);
        outcome.done(text);
      }
    });
  });
}

// Parses the number in "done NUMBER".
int64_t expectDone(const std::string& text) {
  const std::string verb = "done ";
  if (text.rfind(verb, 0) != 0) {
    throw std::runtime_error("the server reports: " + text);
  }
  return std::stoll(text.substr(verb.size()));
}

// Batch is a number of messages, each with its own memory, and their measurements. Callbacks
// keep it alive: those of writes may run after the measurement.
class Batch : public std::enable_shared_from_this<Batch> {
 public:
  Batch(const Flags& flags, tp::Pipe& pipe, Arena& sources, Arena& echoes, uint64_t messages, uint64_t first)
      : flags_(flags), pipe_(pipe), sources_(sources), echoes_(echoes), count_(messages), first_(first) {
    for (uint64_t i = 0; i < count_; ++i) {
      sources_.fill(i, first_ + i);
      messages_.push_back(message(sources_, i, flags_.size, flags_.named));
    }
    echoes_.clear(count_);
  }

  // Announces a batch and waits until the server is ready; start then runs on the library's
  // thread.
  void announce(const char* kind, std::function<void()> start = [] {}) {
    std::ostringstream order;
    order << kind << ' ' << count_ << ' ' << first_ << ' ' << flags_.size << ' ' << flags_.depth << ' ' << flags_.named;
    sendControl(pipe_, order.str());
    expect("ready", start);
  }

  // Waits for a control message; then runs on the library's thread when it has arrived.
  void expect(const std::string& word, std::function<void()> then = [] {}) {
    Outcome outcome;
    receiveControl(pipe_, outcome, [] {}, [word, then](const std::string& text) {
      if (text == word) {
        then();
      }
    });
    std::string text = outcome.wait();
    if (text != word) {
      throw std::runtime_error("the server reports: " + text);
    }
  }

  // Makes all round trips, each started by the callback of the previous one. Adds the CPU time
  // of both processes.
  void roundTrips(Samples& samples, int64_t& cpu) {
    announce("echo");
    Outcome outcome;
    int64_t before = cpuNs();
    trip(0, count_, samples, outcome);
    outcome.wait();
    int64_t used = cpuNs() - before;
    cpu += used + checkEchoes();
  }

  // Makes round trips, each after an idle time.
  void coldTrips(Samples& samples) {
    announce("echo");
    for (uint64_t i = 0; i < count_; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(flags_.idleUs));
      Outcome outcome;
      trip(i, i + 1, samples, outcome);
      outcome.wait();
    }
    checkEchoes();
  }

  // Sends messages one way, depth of them in flight, and adds to the two times. All writes are
  // started on the library's thread, because two threads could change their order.
  void oneWay(int64_t& ns, int64_t& cpu) {
    Outcome arrived;
    int64_t before = 0, took = 0, used = 0;
    Clock::time_point start;
    announce("sink", [&] {
      before = cpuNs();
      start = Clock::now();
      receiveControl(pipe_, arrived, [&] {
        took = nsSince(start);
        used = cpuNs() - before;
      });
      for (uint64_t i = 0; i < std::min(flags_.depth, count_); ++i) {
        send(arrived);
      }
    });
    used += expectDone(arrived.wait());
    ns += took;
    cpu += used;
    sendControl(pipe_, "check");
    expect("checked");
  }

 private:
  void trip(uint64_t index, uint64_t end, Samples& samples, const Outcome& outcome) {
    auto self = shared_from_this();
    Clock::time_point start = Clock::now();
    pipe_.write(std::move(messages_[index]), [self, outcome](const tp::Error& error) { outcome.failedOn(error); });
    pipe_.readDescriptor([=, &samples](const tp::Error& error, tp::Descriptor descriptor) {
      if (outcome.failedOn(error)) {
        return;
      }
      tp::Allocation memory;
      try {
        memory = allocation(descriptor, self->echoes_, index, self->flags_.size);
      } catch (const std::exception& wrong) {
        outcome.fail(wrong.what());
        return;
      }
      self->pipe_.read(std::move(memory), [=, &samples](const tp::Error& error) {
        if (outcome.failedOn(error)) {
          return;
        }
        samples.push_back(nsSince(start));
        if (index + 1 == end) {
          outcome.done("");
        } else {
          self->trip(index + 1, end, samples, outcome);
        }
      });
    });
  }

  // Writes the next message, and another one when it has been sent.
  void send(const Outcome& outcome) {
    uint64_t index = next_++;
    if (index >= count_) {
      return;
    }
    auto self = shared_from_this();
    pipe_.write(std::move(messages_[index]), [self, outcome](const tp::Error& error) {
      if (!outcome.failedOn(error)) {
        self->send(outcome);
      }
    });
  }

  // Returns the CPU time of the server.
  int64_t checkEchoes() {
    Outcome outcome;
    receiveControl(pipe_, outcome);
    int64_t used = expectDone(outcome.wait());
    for (uint64_t i = 0; i < count_; ++i) {
      std::string wrong = echoes_.difference(i, first_ + i);
      if (!wrong.empty()) {
        throw std::runtime_error("echo: " + wrong);
      }
    }
    return used;
  }

  const Flags& flags_;
  tp::Pipe& pipe_;
  Arena& sources_;
  Arena& echoes_;
  const uint64_t count_, first_;
  uint64_t next_ = 0;  // next message that oneWay writes
  std::vector<tp::Message> messages_;
};

// Client makes one kind of measurement after the other, each in batches after a warm-up batch.
class Client {
 public:
  Client(const Flags& flags, tp::Pipe& pipe)
      : flags_(flags), pipe_(pipe), sources_(flags.buffers), echoes_(flags.buffers) {
    sources_.resize(flags.batch, flags.size);
    echoes_.resize(flags.batch, flags.size);
  }

  void run() {
    Samples unused;
    int64_t none = 0;
    if (flags_.roundTrips > 0) {
      inBatches(warmUp(flags_.roundTrips), [&](Batch& b) { b.roundTrips(unused, none); });
      warm_.reserve(flags_.roundTrips);
      inBatches(flags_.roundTrips, [&](Batch& b) { b.roundTrips(warm_, tripCpuNs_); });
    }
    inBatches(flags_.coldTrips, [&](Batch& b) { b.coldTrips(cold_); });
    if (flags_.oneWay > 0) {
      inBatches(std::min(flags_.batch, flags_.oneWay), [&](Batch& b) { b.oneWay(none, none); });
      inBatches(flags_.oneWay, [&](Batch& b) { b.oneWay(oneWayNs_, cpuNs_); });
    }
  }

  void print() const {
    std::cout << "{\"rtt_ns\":" << json(warm_) << ",\"rtt_cpu_ns\":" << tripCpuNs_
              << ",\"cold_ns\":" << json(cold_) << ",\"one_way_ns\":" << oneWayNs_
              << ",\"cpu_ns\":" << cpuNs_ << ",\"messages\":" << flags_.oneWay << "}" << std::endl;
  }

 private:
  static uint64_t warmUp(uint64_t count) { return std::min<uint64_t>(count / 10 + 1, 1000); }

  void inBatches(uint64_t messages, std::function<void(Batch&)> work) {
    while (messages > 0) {
      uint64_t n = std::min(messages, flags_.batch);
      auto batch = std::make_shared<Batch>(flags_, pipe_, sources_, echoes_, n, number_);
      work(*batch);
      number_ += n;
      messages -= n;
    }
  }

  static std::string json(const Samples& samples) {
    std::ostringstream out;
    out << '[';
    for (size_t i = 0; i < samples.size(); ++i) {
      out << (i > 0 ? "," : "") << samples[i];
    }
    out << ']';
    return out.str();
  }

  const Flags& flags_;
  tp::Pipe& pipe_;
  Arena sources_, echoes_;
  uint64_t number_ = 0;
  Samples warm_, cold_;
  int64_t tripCpuNs_ = 0, oneWayNs_ = 0, cpuNs_ = 0;
};

}  // namespace

void measure(const Flags& flags) {
  auto context = makeContext(flags);
  PipePtr pipe = context->connect(flags.to);
  Client client(flags, *pipe);
  client.run();
  client.print();
  pipe->close();
  context->join();
}
