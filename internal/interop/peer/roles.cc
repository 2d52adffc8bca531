#include "roles.h"

#include <iostream>
#include <map>
#include <mutex>

#include "message.h"

namespace tp = tensorpipe;

namespace {

// Whether the error is the end of the connection. The uv transport has its own type for it.
bool isEnd(const tp::Error& error) {
  return error.isOfType<tp::EOFError>() || error.what().rfind("EOF", 0) == 0;
}

// Session is the base of all roles: a pipe, and the call of Finish at its end. Each
// pending callback of the pipe holds a reference to it.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(const Flags& flags, PipePtr pipe, Finish finish)
      : flags_(flags), pipe_(std::move(pipe)), finish_(std::move(finish)) {}
  virtual ~Session() = default;

  virtual void start() = 0;

 protected:
  template <class T>
  std::shared_ptr<T> self() {
    return std::static_pointer_cast<T>(shared_from_this());
  }

  void done(const std::string& error) {
    std::call_once(once_, [&] {
      pipe_->close();
      finish_(error);
    });
  }

  // Reads one whole message and calls then with it, or ended at the end of the pipe.
  void receive(std::function<void(MessagePtr)> then) {
    auto keep = shared_from_this();
    pipe_->readDescriptor([this, keep, then](const tp::Error& error, tp::Descriptor descriptor) {
      error ? ended(error) : read(descriptor, then);
    });
  }

  // The end of the pipe between messages is no error. The library reports a peer that
  // closed and one that died in the same way.
  virtual void ended(const tp::Error& error) {
    done(isEnd(error) ? "" : error.what());
  }

  // Writes a message and calls then once its memory may be reused.
  void send(MessagePtr message, std::function<void()> then) {
    auto keep = shared_from_this();
    pipe_->write(message->view(), [this, keep, message, then](const tp::Error& error) {
      error ? done(error.what()) : then();
    });
  }

  const Flags& flags_;
  const PipePtr pipe_;

 private:
  void read(const tp::Descriptor& descriptor, std::function<void(MessagePtr)> then) {
    MessagePtr message;
    try {
      message = allocate(descriptor);
    } catch (const std::exception& error) {
      done(error.what());
      return;
    }
    auto keep = shared_from_this();
    pipe_->read(message->allocation(), [this, keep, then, message](const tp::Error& error) {
      error ? done(error.what()) : then(message);
    });
  }

  const Finish finish_;
  std::once_flag once_;
};

class Echo final : public Session {
 public:
  using Session::Session;
  void start() override {
    auto keep = self<Echo>();
    receive([keep](MessagePtr message) {
      keep->send(message, [] {});
      keep->start();
    });
  }
};

class Sink final : public Session {
 public:
  using Session::Session;
  void start() override {
    auto keep = self<Sink>();
    receive([keep](MessagePtr message) {
      printLine(message->json());
      ++keep->seen_ == keep->flags_.count ? keep->done("") : keep->start();
    });
  }

 private:
  Fixed seen_ = 0;
};

class Stall final : public Session {
 public:
  using Session::Session;
  void start() override {
    auto keep = self<Stall>();
    pipe_->readDescriptor([keep](const tp::Error& error, tp::Descriptor descriptor) {
      if (error) {
        keep->ended(error);
        return;
      }
      printLine(
          "{\"payloads\":" + std::to_string(descriptor.payloads.size()) +
          ",\"tensors\":" + std::to_string(descriptor.tensors.size()) + "}");
      keep->kept_ = keep;  // an idle pipe has no callback that refers to the session
    });
  }

 private:
  std::shared_ptr<Stall> kept_;
};

// The number of messages that a sender sends.
Fixed total(const Flags& flags) { return flags.count > 0 ? flags.count : 1; }

// The totals that a sender prints as its last line.
struct Totals {
  Fixed messages = 0;
  uint64_t payloads = 0, tensors = 0, bytes = 0;

  void add(const OwnedMessage& message) {
    ++messages;
    payloads += message.payloads.size();
    tensors += message.tensors.size();
    bytes += message.bytes();
  }

  std::string json() const {
    return "{\"messages\":" + std::to_string(messages) + ",\"payloads\":" + std::to_string(payloads) +
        ",\"tensors\":" + std::to_string(tensors) + ",\"bytes\":" + std::to_string(bytes) + "}";
  }
};

// Sends messages and waits for all writes: closing the pipe earlier would abort them.
class Source final : public Session {
 public:
  using Session::Session;
  void start() override { flags_.both ? sendAll() : sendNext(); }

 private:
  void sendAll() {
    std::vector<MessagePtr> messages;
    for (Fixed i = 0; i < total(flags_); ++i) {
      messages.push_back(generate(flags_, i));
    }
    for (const auto& message : messages) {
      auto keep = self<Source>();
      send(message, [keep, message] { keep->sent(message); });
    }
  }

  void sendNext() {
    auto keep = self<Source>();
    MessagePtr message = generate(flags_, totals_.messages);
    send(message, [keep, message] {
      if (!keep->sent(message)) {
        keep->sendNext();
      }
    });
  }

  bool sent(MessagePtr message) {
    totals_.add(*message);
    bool last = totals_.messages == total(flags_);
    if (last) {
      printLine(totals_.json());
      waitForEnd();
    }
    return last;
  }

  // Waits until the reader closes the pipe, after it has read everything.
  void waitForEnd() {
    auto keep = self<Source>();
    receive([keep](MessagePtr) { keep->done("the reader sent a message"); });
  }

  Totals totals_;
};

// Sends messages one after the other, or all at once, and compares each with its echo.
class Check final : public Session {
 public:
  using Session::Session;
  void start() override {
    for (Fixed i = 0; flags_.both && i < total(flags_); ++i) {
      sent_.push_back(generate(flags_, i));
    }
    for (const auto& message : sent_) {
      send(message, [] {});
    }
    next();
  }

 private:
  void ended(const tp::Error& error) override { done(error.what()); }

  void next() {
    if (!flags_.both) {
      sent_.push_back(generate(flags_, totals_.messages));
      send(sent_.back(), [] {});
    }
    auto keep = self<Check>();
    receive([keep](MessagePtr echo) { keep->compare(*echo); });
  }

  void compare(const OwnedMessage& echo) {
    MessagePtr& sent = sent_[totals_.messages];
    std::string difference = sent->difference(echo);
    if (!difference.empty()) {
      done("message " + std::to_string(totals_.messages) + " came back different: " + difference);
      return;
    }
    sent.reset();
    totals_.add(echo);
    if (totals_.messages < total(flags_)) {
      next();
      return;
    }
    printLine(totals_.json());
    done("");
  }

  Totals totals_;
  std::vector<MessagePtr> sent_;
};

template <class T>
std::shared_ptr<Session> make(const Flags& flags, PipePtr pipe, Finish finish) {
  return std::make_shared<T>(flags, std::move(pipe), std::move(finish));
}

}  // namespace

void play(const Flags& flags, PipePtr pipe, Finish finish) {
  static const std::map<std::string, decltype(&make<Echo>)> kRoles{
      {"echo", make<Echo>},   {"sink", make<Sink>},     {"stall", make<Stall>},
      {"check", make<Check>}, {"source", make<Source>},
  };
  kRoles.at(flags.role)(flags, std::move(pipe), std::move(finish))->start();
}

bool servesOne(const Flags& flags) {
  return !flags.to.empty() || flags.role == "check" || flags.role == "source";
}

void printLine(const std::string& line) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  std::cout << line << std::endl;
}
