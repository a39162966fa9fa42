#include "ddip/worker/control.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ddip/base/ending.h"
#include "ddip/base/error.h"
#include "ddip/worker/crash.h"
#include "ddip/worker/native_frame.h"

namespace ddip::worker {
namespace {

using namespace std::chrono_literals;
using wire::json;
using wire::Message;
using wire::Type;

constexpr size_t kMaxPendingBytes = 4u << 20;
constexpr size_t kMaxChunk = 256u << 10;
constexpr size_t kMaxTasks = 1024;
// Half of what a frame takes: the coordinator writes it once more, as JSON.
constexpr size_t kMaxMessage = net::kBodyCap / 2;

// The ladder: soft at once, SIGINT after 0.1 s, the communicators after 0.4 s, a report at 0.7 s. Killing is nobody's
// business here.
constexpr auto kSignalAfter = 100ms;
constexpr auto kAbortAfter = 300ms;
constexpr auto kReportAfter = 300ms;
// A peer failed while we sit in a collective with it: it will never come.
constexpr auto kPeerAbortAfter = 1000ms;
// A line that is printed now and then is sent at once, by the thread that printed it: a process that dies with its next
// breath has said it. A flood goes through the control thread, many lines in one message.
constexpr double kLinesPerSecond = 500;
constexpr auto kOthersFlush = 500ms;  // a thread that lost its core in the middle has it again by then

// What is said instead of a message that no frame can carry; it keeps its place, and a cell keeps its ending.
void make_sendable(Message& message, size_t size) {
  std::string what = fmt::format("{} of {} MiB is too large to send (at most {} MiB)", wire::name_of(message.type),
                                 size >> 20, kMaxMessage >> 20);
  if (message.type != Type::done) {
    message.type = Type::note;
    message.body = {{"text", std::move(what)}};
    return;
  }
  std::string outcome = message.body.value("outcome", "ok");
  std::string type = message.body.value("type", "ValueError").substr(0, 200);
  message.body = {{"outcome", outcome == "ok" ? "error" : outcome},
                  {"type", type},
                  {"message", what},
                  {"traceback", type + ": " + what + "\n"},
                  {"seconds", message.body.value("seconds", 0.0)}};
}

// A control character takes six bytes there.
bool is_too_large_as_json(const Message& message, size_t size) {
  if (message.type == Type::output || size < net::kBodyCap / 8) return false;
  return message.body.dump(-1, ' ', false, json::error_handler_t::replace).size() > net::kBodyCap - kMaxChunk;
}

// In a notebook, and in a program.
constexpr const char* kRemedy =
    "%makedip --rebuild (or rebuild() of its Group) makes it again; a Pipeline goes on as it is; replicas may have "
    "stopped one step apart, so wrap their model again (rank 0's weights go to all) and call "
    "ddip.broadcast_optimizer_state, or look with %%dip --check model";

// The default group of a collective inside torch has no name here.
std::string described(const InCollective& in) {
  return in.group.empty() ? in.operation : fmt::format("{} on group '{}'", in.operation, in.group);
}

}  // namespace

Control::Control(ControlOptions options)
    : options_(std::move(options)),
      main_thread_(static_cast<pid_t>(::syscall(SYS_gettid))),
      channel_(open_channel()),
      capture_(
          loop_,
          [this](uint64_t cell, Stream stream, std::string bytes) {
            std::unique_lock lock(mutex_);
            append(lock, {{Type::output, options_.rank, 0, cell, json::object(), {}}, std::move(bytes), stream});
          },
          [this] {
            std::lock_guard lock(mutex_);
            return pending_bytes_ >= kMaxPendingBytes;
          }),
      // A short cell is over before anybody has to look at its pipes; their bytes are read at its end.
      handover_(loop_, [this] { capture_.watch_current(); }) {}

Control::~Control() = default;

std::unique_ptr<wire::Channel> Control::open_channel() {
  auto on_closed = [](const std::string& reason) {
    // The agent is gone, and with it the group, or we can not understand it. Nothing of the user's is at stake here
    // that is not already lost; the whole process group goes, so no child stays behind.
    if (reason != net::kClosedByPeer)
      leave_last_line(fmt::format("{}its connection to ddip broke ({})", kEndedByUs, reason));
    ::kill(0, SIGKILL);
    ::_exit(1);
  };
  auto on_drained = [this] {
    std::unique_lock lock(mutex_);
    flush(lock);
  };
  auto channel = std::make_unique<wire::Channel>(
      loop_, std::move(options_.socket),
      wire::Channel::Events{[this](Message message) { on_message(std::move(message)); }, on_closed, on_drained});
  json about = options_.about;
  about["pid"] = ::getpid();
  channel->send({Type::ready, options_.rank, 0, options_.incarnation, std::move(about), {}});
  return channel;
}

void Control::on_message(Message message) {
  switch (message.type) {
    case Type::execute: {
      std::lock_guard lock(mutex_);
      if (tasks_.size() >= kMaxTasks) throw ProtocolError("task queue full");
      return tasks_.push_back(std::move(message));
    }
    case Type::interrupt:
      return message.body.value("because", "") == "peer" ? on_peer_failed(message) : on_interrupt(message);
    case Type::why: return answer_why(message);
    case Type::ping: channel_->send({Type::stacks, options_.rank, 0, message.id, {{"pong", true}}, {}}); return;
    case Type::input_reply: {
      std::lock_guard lock(mutex_);
      reply_ = std::move(message.body);
      changed_.notify_all();
      return;
    }
    case Type::stop: {
      std::lock_guard lock(mutex_);
      ended_ = true;
      changed_.notify_all();
      room_.notify_all();
      return;
    }
    default: throw ProtocolError("a worker does not expect " + wire::name_of(message.type));
  }
}

// ---- interrupts

bool Control::still_running(uint64_t cell) {
  std::lock_guard lock(mutex_);
  return cell != 0 && current_ == cell;
}

// Under the lock, so that the cell cannot end between the look and the signal: a late interrupt never hits the runner
// or the next cell.
bool Control::send_interrupt(uint64_t cell, bool signal) {
  std::lock_guard lock(mutex_);
  if (cell == 0 || current_ != cell) return false;
  if (signal)
    ::syscall(SYS_tgkill, ::getpid(), main_thread_, SIGINT);
  else
    options_.interrupt_interpreter();
  return true;
}

void Control::on_interrupt(const Message& message) {
  uint64_t cell = message.id;
  {
    std::unique_lock lock(mutex_);
    for (auto task = tasks_.begin(); task != tasks_.end(); ++task) {
      if (task->id != cell) continue;
      tasks_.erase(task);  // it had not begun
      append(
          lock,
          {{Type::done, options_.rank, 0, cell, {{"outcome", "interrupted"}, {"why", "cancelled before it began"}}, {}},
           {},
           {}});
      return;
    }
    if (taken_ == cell) {
      interrupted_early_ = true;
      return;
    }
  }
  climb(cell, 1);
}

void Control::climb(uint64_t cell, int rung) {
  if (!still_running(cell)) return;
  auto next = [this, cell, rung](std::chrono::nanoseconds pause) {
    ladder_.timer = loop_.after(pause, [this, cell, rung] { climb(cell, rung + 1); });
  };
  switch (rung) {
    case 1: send_interrupt(cell, false); return next(kSignalAfter);
    case 2:
      ticks_at_signal_ = cpu_ticks(main_thread_);
      send_interrupt(cell, true);
      return next(kAbortAfter);
    case 3: {
      auto in = blocked_in(ticks_at_signal_);
      if (in) {
        int closed = collectives_.abort(in->group);
        note(cell, fmt::format("interrupt: aborted {} ({} connection{} closed); that group is dead on every rank, {}",
                               described(*in), closed, closed == 1 ? "" : "s", kRemedy));
      }
      return next(kReportAfter);
    }
    default: note(cell, fmt::format("interrupt: rank {} goes on ({})", options_.rank, native_frame(main_thread_)));
  }
}

// A collective that the main thread waits in: one that Python marked, one of a communicator of ours, or one inside
// torch.
std::optional<InCollective> Control::blocked_in(long ticks_before) {
  if (auto in = collectives_.current()) return in;
  auto waiting = collectives_.waiting();
  if (!waiting.empty()) return InCollective{waiting[0].text, waiting[0].group, 0, {}};
  if (blocked_in_torch(ticks_before)) return InCollective{"a collective inside torch", "", 0, {}};
  return std::nullopt;
}

// A collective that was not entered through torch.distributed's functions: DDP's own, in a backward pass or a
// constructor. The main thread has used no CPU since the last rung or look, and its innermost Python frame is torch's.
bool Control::blocked_in_torch(long ticks_before) {
  if (ticks_before < 0 || cpu_ticks(main_thread_) - ticks_before > 1) return false;
  std::string stack = options_.read_stacks();
  std::string innermost = stack.substr(0, stack.find('\n'));
  return innermost.find("/torch/") != std::string::npos;
}

// Another rank's cell failed. A collective that waits for it can only wait for ever, whenever this rank comes to it; a
// computation may finish, and is asked softly when its time is over. Never rung 3 outside a collective, never rung 4.
void Control::on_peer_failed(const Message& message) {
  const uint64_t cell = message.id;
  auto settle = std::chrono::nanoseconds(static_cast<int64_t>(message.body.value("settle", 10.0) * 1e9));
  auto [entry, is_first] = after_peers_.try_emplace(cell);
  if (!is_first) return;
  entry->second.peer = message.body.value("peer", -1);
  entry->second.deadline = std::chrono::steady_clock::now() + settle;
  entry->second.in = blocked_in(-1);
  entry->second.ticks = cpu_ticks(main_thread_);
  entry->second.timer = loop_.after(kPeerAbortAfter, [this, cell] { look_after_peer(cell); });
}

void Control::look_after_peer(uint64_t cell) {
  auto found = after_peers_.find(cell);
  if (found == after_peers_.end()) return;
  AfterPeer& state = found->second;
  const bool running = still_running(cell);
  if (!running && !is_ahead(cell)) {
    after_peers_.erase(found);
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  std::chrono::nanoseconds next = kPeerAbortAfter / 2;
  if (running) {
    auto in = blocked_in(state.ticks);
    // Of most collectives nobody knows since when: two looks must see the same one.
    if (in && in == state.in && in != state.aborted && now - in->since > kPeerAbortAfter / 2)
      abort_for_peer(cell, state);
    else if (!state.asked && now >= state.deadline) {
      state.asked = true;
      if (send_interrupt(cell, true))
        note(cell, fmt::format("rank {} failed; this rank was asked to stop (--settle)", state.peer));
    }
    state.in = std::move(in);
    if (!state.asked && state.deadline > now) next = std::min<std::chrono::nanoseconds>(next, state.deadline - now);
  }
  state.ticks = cpu_ticks(main_thread_);
  state.timer = loop_.after(next, [this, cell] { look_after_peer(cell); });
}

void Control::abort_for_peer(uint64_t cell, AfterPeer& state) {
  {
    std::lock_guard lock(mutex_);
    aborted_for_ = {cell, state.peer};
  }
  collectives_.abort(state.in->group);
  note(cell, fmt::format("rank {} failed, so {} was aborted here; {}", state.peer, described(*state.in), kRemedy));
  state.aborted = state.in;
}

// It has not begun yet.
bool Control::is_ahead(uint64_t cell) {
  std::lock_guard lock(mutex_);
  return taken_ == cell || std::ranges::any_of(tasks_, [&](const Task& task) { return task.id == cell; });
}

void Control::answer_why(const Message& message) {
  json body = {{"stack", options_.read_stacks()}};
  {
    std::lock_guard lock(mutex_);
    body["cell"] = current_;
    if (current_ != 0)
      body["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count();
    body["queued"] = tasks_.size();
  }
  if (body["cell"] != 0) body["native"] = native_frame(main_thread_);
  if (auto in = collectives_.current()) {
    body["collective"] = {
        {"operation", in->operation},
        {"group", in->group},
        {"number", in->number},
        {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - in->since).count()}};
  }
  body["communicators"] = json::array();
  for (const auto& one : collectives_.waiting()) body["communicators"].push_back(one.text);
  body["dead_groups"] = collectives_.dead_groups();
  channel_->send({Type::stacks, options_.rank, 0, message.id, std::move(body), {}});
}

// ---- main thread

std::variant<std::monostate, Control::Task, Control::Ended> Control::next_task(std::chrono::milliseconds patience) {
  auto some = [this] {
    std::lock_guard lock(mutex_);
    return ended_ || !tasks_.empty();
  };
  if (!some()) handover_.turn_until(std::chrono::steady_clock::now() + patience, some);
  std::lock_guard lock(mutex_);
  if (ended_) return Ended::yes;
  if (tasks_.empty()) return std::monostate{};
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  taken_ = task.id;
  interrupted_early_ = false;
  return task;
}

void Control::enter(uint64_t cell) {
  try {
    capture_.switch_to(cell);
  } catch (const std::exception& error) {
    // The user's code holds every descriptor; the cell that closes them must be able to run.
    note(cell, fmt::format("what subprocesses of this cell print is not shown under it: {}", error.what()));
  }
  std::lock_guard lock(mutex_);
  current_ = cell;
  since_ = std::chrono::steady_clock::now();
  taken_ = 0;
  if (handover_.taken()) loop_.post([this] { capture_.watch_current(); });
  if (std::exchange(interrupted_early_, false)) loop_.post([this, cell] { climb(cell, 1); });
}

void Control::leave() {
  uint64_t cell;
  {
    std::lock_guard lock(mutex_);
    cell = std::exchange(current_, 0);
  }
  if (cell != 0) capture_.switch_to(0);
}

bool Control::armed() const {
  std::lock_guard lock(mutex_);
  return current_ != 0;
}

void Control::finish(uint64_t cell, json body, std::vector<Fd> descriptors) {
  {
    std::unique_lock lock(mutex_);
    if (aborted_for_.first == cell && body.value("outcome", "") != "ok") body["because_of"] = aborted_for_.second;
    append(lock, {{Type::done, options_.rank, 0, cell, std::move(body), std::move(descriptors)}, {}, {}});
  }
  capture_.prepare();
}

void Control::ask(uint64_t cell, const std::string& prompt, bool secret) {
  std::unique_lock lock(mutex_);
  reply_.reset();
  append(lock, {{Type::input_request, options_.rank, 0, cell, {{"prompt", prompt}, {"secret", secret}}, {}}, {}, {}});
}

std::optional<std::string> Control::asked_reply(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return reply_ || ended_; });
  if (ended_) throw ConfigError("the group stops");
  if (!reply_) return std::nullopt;
  json reply = std::move(*reply_);
  reply_.reset();
  if (reply.contains("error")) throw ConfigError(reply.at("error").get<std::string>());
  return reply.at("text").get<std::string>();
}

// ---- any thread

bool Control::write(uint64_t cell, Stream stream, std::string_view bytes, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  if (!room_.wait_for(lock, patience, [this] { return pending_bytes_ < kMaxPendingBytes || ended_; })) return false;
  lock.unlock();
  capture_.drain(cell, stream);
  lock.lock();
  for (; !bytes.empty(); bytes.remove_prefix(std::min(kMaxChunk, bytes.size()))) {
    append(
        lock,
        {{Type::output, options_.rank, 0, cell, json::object(), {}}, std::string(bytes.substr(0, kMaxChunk)), stream});
  }
  return true;
}

void Control::display(uint64_t cell, json bundle) {
  std::unique_lock lock(mutex_);
  append(lock, {{Type::display, options_.rank, 0, cell, std::move(bundle), {}}, {}, {}});
}

void Control::note(uint64_t cell, const std::string& text) {
  std::unique_lock lock(mutex_);
  append(lock, {{Type::note, options_.rank, 0, cell, {{"text", text}}, {}}, {}, {}});
}

bool Control::say_all(std::chrono::milliseconds patience) {
  auto deadline = std::chrono::steady_clock::now() + patience;
  capture_.drain_current();
  std::unique_lock lock(mutex_);
  for (;;) {
    flush(lock);
    if (pending_.empty() && !flushing_ && channel_->queued_bytes() == 0) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    room_.wait_for(lock, 1ms);  // the socket's own queue tells nobody when it is empty
  }
}

// Output next to output of the same cell and stream is one message.
void Control::append(std::unique_lock<std::mutex>& lock, Pending pending) {
  bool here = may_send_here(pending);
  pending_bytes_ += pending.bytes.size();
  Pending* last = pending_.empty() ? nullptr : &pending_.back();
  if (last && last->message.type == Type::output && pending.message.type == Type::output &&
      last->message.id == pending.message.id && last->stream == pending.stream &&
      last->bytes.size() + pending.bytes.size() <= kMaxChunk) {
    last->bytes += pending.bytes;
  } else {
    pending_.push_back(std::move(pending));
  }
  if (!here) return wake();
  flush(lock);
  // Whoever is flushing takes ours along; a line that is printed counts as said only when it has left.
  room_.wait_for(lock, kOthersFlush, [this] { return !flushing_; });
}

// Everything but output is rare. Of output only whole lines: print() writes a line's text and its end one by one.
bool Control::may_send_here(const Pending& pending) {
  if (pending.message.type != Type::output) return true;
  if (pending.bytes.empty() || (pending.bytes.back() != '\n' && pending.bytes.back() != '\r')) return false;
  auto now = std::chrono::steady_clock::now();
  double passed = std::chrono::duration<double>(now - std::exchange(lines_counted_, now)).count();
  lines_at_once_ = std::min(kLinesAtOnce, lines_at_once_ + passed * kLinesPerSecond);
  if (lines_at_once_ < 1) return false;
  lines_at_once_ -= 1;
  return true;
}

void Control::wake() {
  if (std::exchange(waking_, true)) return;
  loop_.post([this] {
    std::unique_lock lock(mutex_);
    waking_ = false;
    flush(lock);
  });
}

// Any thread: everything that is pending, as far as the socket takes it; the rest when it has drained.
void Control::flush(std::unique_lock<std::mutex>& lock) {
  if (std::exchange(flushing_, true)) return;
  while (!pending_.empty() && channel_->queued_bytes() < kMaxPendingBytes) {
    Pending next = std::move(pending_.front());
    pending_.pop_front();
    pending_bytes_ -= next.bytes.size();
    lock.unlock();
    send(std::move(next));
    lock.lock();
  }
  flushing_ = false;
  room_.notify_all();
}

void Control::send(Pending pending) {
  Message& message = pending.message;
  if (message.type == Type::output) {
    std::vector<uint8_t> bytes(pending.bytes.begin(), pending.bytes.end());
    message.body = {{"stream", static_cast<int>(pending.stream)}, {"bytes", json::binary(std::move(bytes))}};
  }
  std::string encoded = wire::encode(message);
  if (encoded.size() > kMaxMessage || is_too_large_as_json(message, encoded.size())) {
    make_sendable(message, encoded.size());
    encoded = wire::encode(message);
  }
  channel_->send_encoded(encoded, message.descriptors);
}

}  // namespace ddip::worker
