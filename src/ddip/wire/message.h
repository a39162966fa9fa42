// What travels between the processes of a group. WIRE.md describes every byte and every message.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "ddip/base/fd.h"

namespace ddip::wire {

// What to do instead of a cell that no frame can carry.
inline constexpr const char* kCellTooLargeRemedy = "read its data from a file, or push() it";

using nlohmann::json;

enum class Type : uint16_t {
  // client → coordinator
  hello = 1,
  execute = 2,
  interrupt = 3,
  info = 4,
  why = 5,
  restart = 6,
  stop = 7,
  watch = 8,
  acknowledge = 9,
  input_reply = 10,

  // coordinator → client
  welcome = 32,
  accepted = 33,
  record = 34,
  payload = 35,
  answer = 36,
  refused = 37,
  input_request = 38,
  caught_up = 39,

  // coordinator → agent
  spawn = 64,
  kill = 65,

  // agent → coordinator
  joined = 80,
  exited = 81,
  host_note = 82,

  // worker → agent → coordinator
  ready = 96,
  output = 97,
  display = 98,
  done = 99,
  stacks = 100,
  note = 101,
  ping = 102,

  // agent ↔ warm parent
  fork = 128,
  forked = 129,
  child_exited = 130,
  warmed = 131,
};

constexpr int32_t kNoRank = -1;

struct Message {
  Type type{};
  int32_t rank = kNoRank;
  uint32_t epoch = 0;
  uint64_t id = 0;  // a cell's number, or a client's number for its own request
  json body = json::object();
  std::vector<Fd> descriptors;  // sealed memory files and sockets, passed by SCM_RIGHTS beside the bytes
};

// "execute", "output", …; "type 77" for a number that is no type.
std::string name_of(Type type);

}  // namespace ddip::wire
