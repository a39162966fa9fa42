#include "ddip/client/client.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>

#include "ddip/base/error.h"
#include "ddip/net/blocking.h"
#include "ddip/net/local_socket.h"
#include "ddip/wire/codec.h"

namespace ddip::client {
namespace {

using wire::Message;
using wire::Type;

constexpr size_t kQueueBytes = 8u << 20;

std::vector<uint8_t> read_key(const GroupFolder& folder) {
  std::ifstream file(folder.key(), std::ios::binary);
  std::vector<uint8_t> key((std::istreambuf_iterator<char>(file)), {});
  if (key.empty()) throw PeerLost("group " + folder.name() + " has no key: it is gone, or still starting");
  return key;
}

}  // namespace

Client::Client(const GroupFolder& folder, const std::string& name, Milliseconds patience)
    : socket_(net::connect_to(folder.socket())) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are the caller's threads'
  reader_ = std::thread([this] { read_all(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  try {
    welcome_ =
        request(Type::hello, {{"role", "client"}, {"client", name}, {"key", json::binary(read_key(folder))}}, patience);
  } catch (...) {
    ::shutdown(socket_.get(), SHUT_RDWR);
    reader_.join();
    throw;
  }
}

Client::~Client() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  ::shutdown(socket_.get(), SHUT_RDWR);
  reader_.join();
}

void Client::read_all() {
  net::BlockingReader reader(socket_.get());
  try {
    for (;;) {
      for (net::Parcel& parcel : reader.read_available()) {
        Message message = wire::decode(parcel.body);
        message.descriptors = std::move(parcel.descriptors);
        on_message(std::move(message));
      }
    }
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    lost_ = error.what();
    changed_.notify_all();
  }
}

void Client::on_message(Message message) {
  std::unique_lock lock(mutex_);
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
      changed_.notify_all();
      return;
    }
    default: break;
  }
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
  auto own = queues_.find(event.cell);
  if (own != queues_.end()) return put(lock, own->second, std::move(event));
  if (watching_) put(lock, queues_[0], std::move(event));  // otherwise: the rest of a cell that was forgotten
}

void Client::put(std::unique_lock<std::mutex>& lock, Queue& queue, CellEvent event) {
  if (queue.keep_all) {
    // map nodes do not move, but forget() may erase this one while we wait: look it up again by cell.
    uint64_t cell = event.cell;
    changed_.wait(lock, [&] { return closing_ || !queues_.contains(cell) || queues_.at(cell).bytes < kQueueBytes; });
    if (closing_ || !queues_.contains(cell)) return;
    Queue& same = queues_.at(cell);
    same.bytes += event.bytes.size();
    same.events.push_back(std::move(event));
    changed_.notify_all();
    return;
  }
  queue.bytes += event.bytes.size();
  queue.events.push_back(std::move(event));
  while (queue.bytes > kQueueBytes) {
    auto oldest = std::find_if(queue.events.begin(), queue.events.end(),
                               [](const CellEvent& entry) { return entry.kind == RecordKind::output; });
    if (oldest == queue.events.end()) break;
    queue.elided_lines += static_cast<uint64_t>(std::count(oldest->bytes.begin(), oldest->bytes.end(), '\n'));
    queue.bytes -= oldest->bytes.size();
    queue.events.erase(oldest);
  }
  changed_.notify_all();
}

Message Client::await(uint64_t number, Milliseconds patience, std::unique_lock<std::mutex>& lock) {
  bool done = changed_.wait_for(lock, patience, [&] { return answers_.at(number).has_value() || !lost_.empty(); });
  std::optional<Message> answer = std::move(answers_.at(number));
  answers_.erase(number);
  if (answer) {
    if (answer->type == Type::refused) throw ConfigError(answer->body.value("why", "refused"));
    return std::move(*answer);
  }
  if (!done) throw TimedOut(fmt::format("the group did not answer in {} ms", patience.count()));
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
  uint64_t number = ++last_request_;
  answers_[number];
  keep_all_[number] = keep_all;
  lock.unlock();
  std::string bytes = wire::encode({Type::execute, wire::kNoRank, 0, number, std::move(body), {}});
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
  if (!changed_.wait_for(lock, patience, [&] { return has_some() || !lost_.empty(); })) return std::nullopt;
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
  changed_.notify_all();
  return event;
}

void Client::forget(uint64_t cell) {
  std::lock_guard lock(mutex_);
  queues_.erase(cell);
  changed_.notify_all();
}

}  // namespace ddip::client
