#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "ddip/base/error.h"
#include "ddip/wire/messagepack_check.h"

namespace ddip::wire {
namespace {

using nlohmann::json;

// Random bytes are mostly small integers; weighted so that containers, lengths and odd tags meet each other.
std::string any_bytes() {
  auto tag = rc::gen::weightedOneOf<char>(
      {{4, rc::gen::map(rc::gen::inRange(0x80, 0xa4), [](int byte) { return static_cast<char>(byte); })},
       {4, rc::gen::map(rc::gen::inRange(0xc0, 0xe0), [](int byte) { return static_cast<char>(byte); })},
       {3, rc::gen::map(rc::gen::inRange(0, 8), [](int byte) { return static_cast<char>(byte); })},
       {1, rc::gen::arbitrary<char>()}});
  return *rc::gen::container<std::string>(tag);
}

std::string our_refusal(const std::string& bytes) {
  try {
    check_messagepack(bytes, 32);
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "";
}

// nlohmann's error number; 0 if it takes the bytes.
int their_refusal(const std::string& bytes) {
  try {
    json value = json::from_msgpack(bytes, true, true);
  } catch (const json::exception& error) {
    return error.id;
  }
  return 0;
}

constexpr int kKeyIsNoString = 113;  // we leave that to the library: it needs no recursion

}  // namespace

RC_GTEST_PROP(MessagepackCheckProperty, what_we_accept_the_library_accepts, ()) {
  std::string bytes = any_bytes();
  std::string ours = our_refusal(bytes);
  int theirs = their_refusal(bytes);
  if (ours.empty()) RC_ASSERT(theirs == 0 || theirs == kKeyIsNoString);
}

RC_GTEST_PROP(MessagepackCheckProperty, what_the_library_accepts_we_refuse_only_for_depth_or_extensions, ()) {
  std::string bytes = any_bytes();
  std::string ours = our_refusal(bytes);
  if (their_refusal(bytes) != 0) return;
  RC_ASSERT(ours.empty() || ours.find("deeply") != std::string::npos || ours.find("extension") != std::string::npos);
}

}  // namespace ddip::wire
