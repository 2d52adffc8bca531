#include "node.h"

namespace tp = tensorpipe;

namespace {

void addTransport(tp::Context& context, const std::string& name) {
  if (name == "uv") {
    context.registerTransport(0, name, tp::transport::uv::create());
  } else if (name == "shm") {
    context.registerTransport(200, name, tp::transport::shm::create());
  } else {
    throw UsageError("unknown transport " + name);
  }
}

std::shared_ptr<tp::channel::Context> createLanes(int lanes) {
  std::vector<std::shared_ptr<tp::transport::Context>> contexts;
  std::vector<std::shared_ptr<tp::transport::Listener>> listeners;
  for (int i = 0; i < lanes; ++i) {
    contexts.push_back(tp::transport::uv::create());
    listeners.push_back(contexts.back()->listen("127.0.0.1:0"));
  }
  return tp::channel::mpt::create(std::move(contexts), std::move(listeners));
}

// The library leaves out silently what does not work here. A test must know.
void addChannel(tp::Context& context, const std::string& name, int64_t priority,
                std::shared_ptr<tp::channel::Context> channel) {
  if (!channel->isViable()) {
    throw std::runtime_error("channel " + name + " does not work on this machine");
  }
  context.registerChannel(priority, name, std::move(channel));
}

void addChannel(tp::Context& context, const std::string& name, int lanes) {
  if (name == "basic") {
    addChannel(context, name, 1000, tp::channel::basic::create());
  } else if (name == "mpt_uv") {
    addChannel(context, name, 1100, createLanes(lanes));
  } else if (name == "cma") {
    addChannel(context, name, 1200, tp::channel::cma::create());
  } else if (name == "xth") {
    addChannel(context, name, 1150, tp::channel::xth::create());
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
