#include "roles.h"

#include <iostream>
#include <map>
#include <mutex>

#include "parcel.h"

namespace tp = tensorpipe;

namespace {

// The uv transport has an error type of its own for the same thing.
bool isEnd(const tp::Error& error) {
  return error.isOfType<tp::EOFError>() || error.what().rfind("EOF", 0) == 0;
}

// Session is what every role shares: a pipe and the one report at its end. It
// lives as long as a callback of its pipe may come.
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

  // Reads one whole message and hands it over. At the end of the pipe it calls
  // ended instead.
  void receive(std::function<void(ParcelPtr)> then) {
    auto keep = shared_from_this();
    pipe_->readDescriptor([this, keep, then](const tp::Error& error, tp::Descriptor descriptor) {
      error ? ended(error) : read(descriptor, then);
    });
  }

  // A reader that is not owed a message takes the end of the pipe for a good
  // one. The library does not tell a peer that closed from one that died.
  virtual void ended(const tp::Error& error) {
    done(isEnd(error) ? "" : error.what());
  }

  // Writes a message; then runs when its memory is free again.
  void send(ParcelPtr parcel, std::function<void()> then) {
    auto keep = shared_from_this();
    pipe_->write(parcel->message(), [this, keep, parcel, then](const tp::Error& error) {
      error ? done(error.what()) : then();
    });
  }

  const Flags& flags_;
  const PipePtr pipe_;

 private:
  void read(const tp::Descriptor& descriptor, std::function<void(ParcelPtr)> then) {
    ParcelPtr parcel;
    try {
      parcel = allocate(descriptor);
    } catch (const std::exception& error) {
      done(error.what());
      return;
    }
    auto keep = shared_from_this();
    pipe_->read(parcel->allocation(), [this, keep, then, parcel](const tp::Error& error) {
      error ? done(error.what()) : then(parcel);
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
    receive([keep](ParcelPtr parcel) {
      keep->send(parcel, [] {});
      keep->start();
    });
  }
};

class Sink final : public Session {
 public:
  using Session::Session;
  void start() override {
    auto keep = self<Sink>();
    receive([keep](ParcelPtr parcel) {
      printLine(parcel->json());
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
      keep->kept_ = keep;  // an idle pipe: nothing else holds it
    });
  }

 private:
  std::shared_ptr<Stall> kept_;
};

// Messages that a sender sends.
Fixed total(const Flags& flags) { return flags.count > 0 ? flags.count : 1; }

// Counts what a sender did, for its last line.
struct Tally {
  Fixed messages = 0;
  uint64_t payloads = 0, tensors = 0, bytes = 0;

  void add(const Parcel& parcel) {
    ++messages;
    payloads += parcel.payloads.size();
    tensors += parcel.tensors.size();
    bytes += parcel.bytes();
  }

  std::string json() const {
    return "{\"messages\":" + std::to_string(messages) + ",\"payloads\":" + std::to_string(payloads) +
        ",\"tensors\":" + std::to_string(tensors) + ",\"bytes\":" + std::to_string(bytes) + "}";
  }
};

// Waits for all its writes: closing a pipe earlier would cut them off.
class Source final : public Session {
 public:
  using Session::Session;
  void start() override { flags_.both ? sendAll() : sendNext(); }

 private:
  void sendAll() {
    std::vector<ParcelPtr> parcels;
    for (Fixed i = 0; i < total(flags_); ++i) {
      parcels.push_back(generate(flags_, i));
    }
    for (const auto& parcel : parcels) {
      auto keep = self<Source>();
      send(parcel, [keep, parcel] { keep->sent(parcel); });
    }
  }

  void sendNext() {
    auto keep = self<Source>();
    ParcelPtr parcel = generate(flags_, tally_.messages);
    send(parcel, [keep, parcel] {
      if (!keep->sent(parcel)) {
        keep->sendNext();
      }
    });
  }

  bool sent(ParcelPtr parcel) {
    tally_.add(*parcel);
    bool last = tally_.messages == total(flags_);
    if (last) {
      printLine(tally_.json());
      waitForEnd();
    }
    return last;
  }

  // The reader closes the pipe once it has everything.
  void waitForEnd() {
    auto keep = self<Source>();
    receive([keep](ParcelPtr) { keep->done("the reader sent a message"); });
  }

  Tally tally_;
};

// Sends messages one by one, or all at once, and compares each with its echo.
class Check final : public Session {
 public:
  using Session::Session;
  void start() override {
    for (Fixed i = 0; flags_.both && i < total(flags_); ++i) {
      sent_.push_back(generate(flags_, i));
    }
    for (const auto& parcel : sent_) {
      send(parcel, [] {});
    }
    next();
  }

 private:
  void ended(const tp::Error& error) override { done(error.what()); }

  void next() {
    if (!flags_.both) {
      sent_.push_back(generate(flags_, tally_.messages));
      send(sent_.back(), [] {});
    }
    auto keep = self<Check>();
    receive([keep](ParcelPtr echo) { keep->compare(*echo); });
  }

  void compare(const Parcel& echo) {
    ParcelPtr& sent = sent_[tally_.messages];
    std::string difference = sent->difference(echo);
    if (!difference.empty()) {
      done("message " + std::to_string(tally_.messages) + " came back different: " + difference);
      return;
    }
    sent.reset();
    tally_.add(echo);
    if (tally_.messages < total(flags_)) {
      next();
      return;
    }
    printLine(tally_.json());
    done("");
  }

  Tally tally_;
  std::vector<ParcelPtr> sent_;
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
