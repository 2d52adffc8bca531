#include "node.h"

namespace tp = tensorpipe;

namespace {

// Throws if the context is not viable, where the library itself ignores it silently.
template <class T>
std::shared_ptr<T> viable(std::shared_ptr<T> context, const std::string& name) {
  if (!context->isViable()) {
    throw std::runtime_error(name + " does not work on this machine");
  }
  return context;
}

void addTransport(tp::Context& context, const std::string& name) {
  auto add = [&](int64_t priority, std::shared_ptr<tp::transport::Context> transport) {
    context.registerTransport(priority, name, viable(std::move(transport), name));
  };
  if (name == "uv") {
    add(0, tp::transport::uv::create());
  } else if (name == "shm") {
    add(200, tp::transport::shm::create());
  } else {
    throw UsageError("unknown transport " + name);
  }
}

// The public header only declares the class Listener, which suffices to pass pointers.
std::shared_ptr<tp::channel::Context> createLanes(int lanes) {
  std::vector<std::shared_ptr<tp::transport::Context>> contexts;
  std::vector<std::shared_ptr<tp::transport::Listener>> listeners;
  for (int i = 0; i < lanes; ++i) {
    contexts.push_back(tp::transport::uv::create());
    listeners.push_back(contexts.back()->listen("127.0.0.1:0"));
  }
  return tp::channel::mpt::create(std::move(contexts), std::move(listeners));
}

void addChannel(tp::Context& context, const std::string& name, int lanes) {
  auto add = [&](int64_t priority, std::shared_ptr<tp::channel::Context> channel) {
    context.registerChannel(priority, name, viable(std::move(channel), name));
  };
  if (name == "basic") {
    add(1000, tp::channel::basic::create());
  } else if (name == "mpt_uv") {
    add(1100, createLanes(lanes));
  } else if (name == "cma") {
    add(1200, tp::channel::cma::create());
  } else if (name == "xth") {
    add(1150, tp::channel::xth::create());
  } else {
    throw UsageError("unknown channel " + name);
  }
}

}  // namespace

Node::Node(const Flags& flags)
    : flags_(flags), context_(tp::ContextOptions().name(flags.name)) {
  for (const auto& name : flags.transports) {
    addTransport(context_, name);
  }
  for (const auto& name : flags.channels) {
    addChannel(context_, name, flags.lanes);
  }
}

std::string Node::listen(std::function<void(PipePtr)> serve) {
  serve_ = std::move(serve);
  listener_ = context_.listen(flags_.listen);
  std::string urls;
  for (const auto& url : flags_.listen) {
    urls += (urls.empty() ? "" : " ") + listener_->url(url.substr(0, url.find("://")));
  }
  accept();
  return urls;
}

void Node::accept() {
  listener_->accept([this](const tp::Error& error, PipePtr pipe) {
    if (error) {
      return;  // the listener was closed
    }
    serve_(std::move(pipe));
    accept();
  });
}

PipePtr Node::connect() {
  return context_.connect(flags_.to, tp::PipeOptions().remoteName("peer"));
}
