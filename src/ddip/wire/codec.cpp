#include "ddip/wire/codec.h"

#include <fmt/format.h>

#include <cstring>

#include "ddip/base/error.h"
#include "ddip/wire/messagepack_check.h"

namespace ddip::wire {
namespace {

constexpr size_t kPrefixBytes = 20;

// Every type we know, with its name; a number that is not here is refused.
struct Known {
  Type type;
  const char* name;
};
constexpr Known kKnown[] = {
    {Type::hello, "hello"},
    {Type::execute, "execute"},
    {Type::interrupt, "interrupt"},
    {Type::info, "info"},
    {Type::why, "why"},
    {Type::restart, "restart"},
    {Type::stop, "stop"},
    {Type::watch, "watch"},
    {Type::acknowledge, "acknowledge"},
    {Type::input_reply, "input_reply"},
    {Type::welcome, "welcome"},
    {Type::accepted, "accepted"},
    {Type::record, "record"},
    {Type::payload, "payload"},
    {Type::answer, "answer"},
    {Type::refused, "refused"},
    {Type::input_request, "input_request"},
    {Type::caught_up, "caught_up"},
    {Type::spawn, "spawn"},
    {Type::kill, "kill"},
    {Type::joined, "joined"},
    {Type::exited, "exited"},
    {Type::host_note, "host_note"},
    {Type::ready, "ready"},
    {Type::output, "output"},
    {Type::display, "display"},
    {Type::done, "done"},
    {Type::stacks, "stacks"},
    {Type::note, "note"},
    {Type::ping, "ping"},
    {Type::fork, "fork"},
    {Type::forked, "forked"},
    {Type::child_exited, "child_exited"},
    {Type::warmed, "warmed"},
};

const Known* find(Type type) {
  for (const Known& known : kKnown) {
    if (known.type == type) return &known;
  }
  return nullptr;
}

template <typename T>
void put(std::string& bytes, size_t at, T value) {
  std::memcpy(&bytes[at], &value, sizeof value);
}

template <typename T>
T get(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

std::string name_of(Type type) {
  const Known* known = find(type);
  return known ? known->name : fmt::format("type {}", static_cast<int>(type));
}

std::string encode(const Message& message) {
  std::string bytes(kPrefixBytes, '\0');
  put(bytes, 0, static_cast<uint16_t>(message.type));
  put(bytes, 4, message.rank);
  put(bytes, 8, message.epoch);
  put(bytes, 12, message.id);
  json::to_msgpack(message.body, nlohmann::detail::output_adapter<char>(bytes));
  return bytes;
}

Message decode(std::string_view bytes) {
  if (bytes.size() <= kPrefixBytes) throw ProtocolError("message cut short");
  Message message;
  message.type = static_cast<Type>(get<uint16_t>(bytes, 0));
  if (!find(message.type)) throw ProtocolError("unknown message: " + name_of(message.type));
  if (get<uint16_t>(bytes, 2) != 0) throw ProtocolError("reserved message bytes are not zero");
  message.rank = get<int32_t>(bytes, 4);
  message.epoch = get<uint32_t>(bytes, 8);
  message.id = get<uint64_t>(bytes, 12);
  std::string_view body = bytes.substr(kPrefixBytes);
  check_messagepack(body, kMaxDepth);
  message.body = json::from_msgpack(body.begin(), body.end(), true, false);
  if (!message.body.is_object()) throw ProtocolError("a message's body must be a map");
  return message;
}

}  // namespace ddip::wire
