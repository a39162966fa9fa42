#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ddip/base/error.h"
#include "ddip/wire/codec.h"

namespace ddip::wire {
namespace {

std::string any_text() { return *rc::gen::arbitrary<std::string>(); }

// Whatever may stand in a body: also binary, numbers at the borders of MessagePack's widths, text that is no UTF-8.
json any_value(int depth) {
  switch (*rc::gen::inRange(0, depth > 0 ? 11 : 9)) {
    case 0: return nullptr;
    case 1: return *rc::gen::arbitrary<bool>();
    case 2: return *rc::gen::arbitrary<int64_t>();
    case 3: return *rc::gen::arbitrary<uint64_t>();
    case 4: {
      uint64_t border = uint64_t{1} << *rc::gen::element(5, 7, 8, 15, 16, 31, 32, 63);
      return border + *rc::gen::element<uint64_t>(0, 1) - 1;
    }
    case 5:
      return -*rc::gen::element<int64_t>(1, 32, 33, 128, 129, 32768, 32769, int64_t{1} << 31, (int64_t{1} << 31) + 1,
                                         INT64_MAX);
    case 6: return *rc::gen::arbitrary<double>();
    case 7:
      return *rc::gen::inRange(0, 4) == 0 ? std::string(*rc::gen::element<size_t>(31, 32, 255, 256, 65535, 65536), 's')
                                          : any_text();
    case 8: {
      size_t size = *rc::gen::inRange(0, 4) == 0 ? *rc::gen::element<size_t>(255, 256, 65535, 65536)
                                                 : *rc::gen::inRange<size_t>(0, 20);
      return json::binary(std::vector<uint8_t>(size, *rc::gen::arbitrary<uint8_t>()));
    }
    case 9: {
      json list = json::array();
      for (int count = *rc::gen::inRange(0, 5); count > 0; --count) list.push_back(any_value(depth - 1));
      return list;
    }
    default: {
      json map = json::object();
      for (int count = *rc::gen::inRange(0, 5); count > 0; --count) map[any_text()] = any_value(depth - 1);
      return map;
    }
  }
}

json any_body() {
  json body = json::object();
  for (int count = *rc::gen::inRange(0, 6); count > 0; --count) body[any_text()] = any_value(4);
  // Now and then one branch down to the limit.
  if (*rc::gen::inRange(0, 4) == 0) {
    json deep = any_value(0);
    for (int level = 1; level < kMaxDepth; ++level)
      deep = *rc::gen::arbitrary<bool>() ? json{{"d", deep}} : json::array({deep});
    body["deep"] = deep;
  }
  return body;
}

Message any_message() {
  std::vector<Type> types;
  for (int number = 0; number < 200; ++number) {
    if (name_of(static_cast<Type>(number)).rfind("type ", 0) != 0) types.push_back(static_cast<Type>(number));
  }
  return {*rc::gen::elementOf(types),
          *rc::gen::arbitrary<int32_t>(),
          *rc::gen::arbitrary<uint32_t>(),
          *rc::gen::arbitrary<uint64_t>(),
          any_body(),
          {}};
}

}  // namespace

RC_GTEST_PROP(CodecProperty, message_comes_back_as_it_was, ()) {
  Message message = any_message();
  Message back = decode(encode(message));
  RC_ASSERT(back.type == message.type);
  RC_ASSERT(back.rank == message.rank);
  RC_ASSERT(back.epoch == message.epoch);
  RC_ASSERT(back.id == message.id);
  RC_ASSERT(back.body == message.body);
}

RC_GTEST_PROP(CodecProperty, cut_or_lengthened_is_refused, ()) {
  std::string bytes = encode(any_message());
  size_t cut = *rc::gen::inRange<size_t>(0, bytes.size());
  RC_ASSERT_THROWS_AS(decode(std::string(bytes, 0, cut)), ProtocolError);
  std::string tail = *rc::gen::nonEmpty(rc::gen::arbitrary<std::string>());
  RC_ASSERT_THROWS_AS(decode(bytes + tail), ProtocolError);
}

RC_GTEST_PROP(CodecProperty, changed_byte_is_refused_or_decodes_to_something_that_encodes_again, ()) {
  std::string bytes = encode(any_message());
  size_t at = *rc::gen::inRange<size_t>(0, bytes.size());
  bytes[at] = *rc::gen::arbitrary<char>();
  try {
    Message changed = decode(bytes);
    RC_ASSERT(decode(encode(changed)).type == changed.type);
  } catch (const ProtocolError&) {
  }
}

}  // namespace ddip::wire
