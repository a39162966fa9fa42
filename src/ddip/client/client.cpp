#include "ddip/client/client.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "ddip/base/error.h"
#include "ddip/base/pidfd.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/wire/codec.h"

namespace ddip::client {
namespace {

using wire::Message;
using wire::Type;

constexpr size_t kQueueBytes = 8u << 20;
// The coordinator adds the ranks and passes it on.
constexpr size_t kMostOfACell = net::kBodyCap - (64u << 10);

std::vector<uint8_t> read_key(const GroupFolder& folder) {
  std::ifstream file(folder.key(), std::ios::binary);
  std::vector<uint8_t> key((std::istreambuf_iterator<char>(file)), {});
  if (key.empty()) throw PeerLost("group " + folder.name() + " has no key: it is gone, or still starting");
  return key;
}

}  // namespace

Client::Client(const GroupFolder& folder, const std::string& name, Milliseconds patience)
    : socket_(net::connect_to(folder.socket())),
      coordinator_(open_pidfd(net::peer_of(socket_.get()).pid)),
      reader_(socket_.get()) {
  welcome_ =
      request(Type::hello, {{"role", "client"}, {"client", name}, {"key", json::binary(read_key(folder))}}, patience);
}

template <typename Ready>
Client::Waited Client::wait(std::unique_lock<std::mutex>& lock, Time deadline, Ready ready) {
  for (;;) {
    if (deliver()) changed_.notify_all();
    if (ready() || !lost_.empty()) return Waited::yes;
    if (std::chrono::steady_clock::now() >= deadline) return Waited::time_over;
    if (reading_ || !undelivered_.empty())
      changed_.wait_until(lock, deadline);
    else if (!read(lock, deadline))
      return std::chrono::steady_clock::now() >= deadline ? Waited::time_over : Waited::signal;
  }
}

// False: the time is over, or a signal came.
bool Client::read(std::unique_lock<std::mutex>& lock, Time deadline) {
  reading_ = true;
  lock.unlock();
  bool some = false;
  std::vector<Message> messages;
  std::string lost;
  try {
    some = reader_.wait(std::max(std::chrono::nanoseconds(0), deadline - std::chrono::steady_clock::now()));
    if (some) {
      for (net::Parcel& parcel : reader_.read_available()) {
        messages.push_back(wire::decode(parcel.body));
        messages.back().descriptors = std::move(parcel.descriptors);
      }
    }
  } catch (const std::exception& error) {
    lost = error.what();
  }
  lock.lock();
  reading_ = false;
  std::move(messages.begin(), messages.end(), std::back_inserter(undelivered_));
  if (!lost.empty()) lost_ = lost;
  changed_.notify_all();  // somebody else may have to read from here on
  return some || !lost.empty();
}

// Whether something was delivered.
bool Client::deliver() {
  bool some = false;
  try {
    while (!undelivered_.empty() && deliver(undelivered_.front())) {
      undelivered_.pop_front();
      some = true;
    }
  } catch (const std::exception& error) {
    undelivered_.clear();
    lost_ = error.what();
  }
  return some;
}

// False: its queue is full, and may not lose anything.
bool Client::deliver(Message& message) {
  switch (message.type) {
    case Type::accepted: {
      uint64_t cell = message.body.at("cell").get<uint64_t>();
      queues_[cell].keep_all = keep_all_[message.id];
      keep_all_.erase(message.id);
      [[fallthrough]];
    }
    case Type::welcome:
    case Type::answer:
    case Type::refused:
    case Type::caught_up: {
      auto waiting = answers_.find(message.id);
      if (waiting != answers_.end()) waiting->second = std::move(message);
      return true;
    }
    default: break;
  }
  auto queue = queues_.find(message.id);
  // Otherwise it is the rest of a cell that was forgotten.
  if (queue == queues_.end() && watching_) queue = queues_.try_emplace(0).first;
  if (queue == queues_.end()) return true;
  if (queue->second.keep_all && queue->second.bytes >= kQueueBytes) return false;
  CellEvent event;
  event.type = message.type;
  event.cell = message.id;
  event.rank = message.rank;
  event.descriptors = std::move(message.descriptors);
  if (message.type == Type::record) {
    event.kind = static_cast<RecordKind>(message.body.at("kind").get<int>());
    event.stream = message.body.at("stream").get<uint8_t>();
    event.sequence = message.body.at("sequence").get<uint64_t>();
    const auto& bytes = message.body.at("body").get_binary();
    event.bytes.assign(bytes.begin(), bytes.end());
  } else {
    event.body = std::move(message.body);
  }
  put(queue->second, std::move(event));
  return true;
}

void Client::put(Queue& queue, CellEvent event) {
  queue.bytes += event.bytes.size();
  queue.events.push_back(std::move(event));
  while (!queue.keep_all && queue.bytes > kQueueBytes) {
    auto oldest = std::find_if(queue.events.begin(), queue.events.end(),
                               [](const CellEvent& entry) { return entry.kind == RecordKind::output; });
    if (oldest == queue.events.end()) break;
    queue.elided_lines += static_cast<uint64_t>(std::count(oldest->bytes.begin(), oldest->bytes.end(), '\n'));
    queue.bytes -= oldest->bytes.size();
    queue.events.erase(oldest);
  }
}

Message Client::await(uint64_t number, Milliseconds patience, std::unique_lock<std::mutex>& lock) {
  auto deadline = std::chrono::steady_clock::now() + patience;
  while (wait(lock, deadline, [&] { return answers_.at(number).has_value(); }) == Waited::signal) {
  }
  std::optional<Message> answer = std::move(answers_.at(number));
  answers_.erase(number);
  if (answer) {
    if (answer->type == Type::refused) throw ConfigError(answer->body.value("why", "refused"));
    return std::move(*answer);
  }
  if (lost_.empty()) throw TimedOut(fmt::format("the group did not answer in {} ms", patience.count()));
  throw PeerLost("the group is gone: " + lost_);
}

json Client::request(Type type, json body, Milliseconds patience) {
  std::unique_lock lock(mutex_);
  uint64_t number = ++last_request_;
  answers_[number];
  if (type == Type::watch) watching_ = true;
  lock.unlock();
  send(type, std::move(body), wire::kNoRank, number);
  lock.lock();
  return await(number, patience, lock).body;
}

void Client::send(Type type, json body, int rank, uint64_t id) {
  std::string bytes = wire::encode({type, rank, 0, id, std::move(body), {}});
  std::lock_guard lock(send_mutex_);
  net::send_blocking(socket_.get(), bytes);
}

Accepted Client::execute(json body, const std::vector<int>& descriptors, Milliseconds patience, bool keep_all) {
  std::unique_lock lock(mutex_);
  const uint64_t number = ++last_request_;
  lock.unlock();
  const std::string bytes = wire::encode({Type::execute, wire::kNoRank, 0, number, std::move(body), {}});
  // Before anything is known of it: a cell that is not sent leaves nothing behind.
  if (bytes.size() > kMostOfACell) {
    throw ConfigError(fmt::format("this cell has {:.1f} MiB, and at most {:.1f} can be sent; {}",
                                  static_cast<double>(bytes.size()) / (1u << 20),
                                  static_cast<double>(kMostOfACell) / (1u << 20), wire::kCellTooLargeRemedy));
  }
  lock.lock();
  answers_[number];
  keep_all_[number] = keep_all;
  lock.unlock();
  {
    std::lock_guard sending(send_mutex_);
    net::send_blocking(socket_.get(), bytes, descriptors);
  }
  lock.lock();
  Message answer = await(number, patience, lock);
  return {answer.body.at("cell").get<uint64_t>(), answer.body.at("behind")};
}

std::optional<CellEvent> Client::next(uint64_t cell, Milliseconds patience) {
  std::unique_lock lock(mutex_);
  auto has_some = [&] {
    auto queue = queues_.find(cell);
    return queue != queues_.end() && !queue->second.events.empty();
  };
  if (wait(lock, std::chrono::steady_clock::now() + patience, has_some) != Waited::yes) return std::nullopt;
  if (!has_some()) throw PeerLost("the group is gone: " + lost_);
  Queue& queue = queues_.at(cell);
  if (queue.elided_lines > 0) {
    CellEvent gap;
    gap.type = Type::record;
    gap.cell = cell;
    gap.kind = RecordKind::gap;
    gap.bytes = fmt::format("{} lines elided (%diplog)", std::exchange(queue.elided_lines, 0));
    return gap;
  }
  CellEvent event = std::move(queue.events.front());
  queue.events.pop_front();
  queue.bytes -= event.bytes.size();
  if (deliver()) changed_.notify_all();  // what waited for this place
  return event;
}

void Client::forget(uint64_t cell) {
  std::lock_guard lock(mutex_);
  queues_.erase(cell);
  if (deliver()) changed_.notify_all();
}

bool Client::wait_for_end(Milliseconds patience) {
  if (!coordinator_) return true;  // it ended before we asked, or lives where we cannot see its processes
  pollfd ended{coordinator_.get(), POLLIN, 0};
  return ::poll(&ended, 1, static_cast<int>(patience.count())) == 1;
}

}  // namespace ddip::client
