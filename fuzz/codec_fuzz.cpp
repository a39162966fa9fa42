// Any bytes as a message: a message or a ProtocolError, nothing else. What is accepted encodes and decodes to itself;
// what our walker accepts, the JSON library accepts too (or refuses for a key that is no text).
// Odd inputs get a sound header first.
#include <cstdint>
#include <string>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/wire/codec.h"
#include "ddip/wire/messagepack_check.h"

using namespace ddip::wire;

namespace {

constexpr size_t kPrefixBytes = 20;
constexpr int kKeyIsNoText = 113;

bool walker_accepts(const std::string& body) {
  try {
    check_messagepack(body, kMaxDepth);
    return true;
  } catch (const ddip::ProtocolError&) {
    return false;
  }
}

void check_against_library(const std::string& body) {
  if (!walker_accepts(body)) return;
  try {
    [[maybe_unused]] const json value = json::from_msgpack(body, true, true);
  } catch (const json::exception& error) {
    DDIP_CHECK(error.id == kKeyIsNoText, "the library accepts what the walker does");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1 && bytes.size() >= kPrefixBytes) {
    bytes[0] = static_cast<char>(Type::execute);
    bytes[1] = bytes[2] = bytes[3] = 0;
  }
  if (bytes.size() > kPrefixBytes) check_against_library(bytes.substr(kPrefixBytes));
  try {
    const Message message = decode(bytes);
    const std::string once = encode(message);
    // Encoded, not compared: NaN is not equal to itself, and the shortest encoding need not be the one that came.
    DDIP_CHECK(encode(decode(once)) == once, "stable from the first encoding on");
  } catch (const ddip::ProtocolError&) {
  }
  return 0;
}
