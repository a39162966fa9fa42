#include "ddip/wire/codec.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "ddip/base/error.h"

namespace ddip::wire {
namespace {

constexpr size_t kPrefix = 20;

std::string refusal(std::string_view bytes) {
  try {
    decode(bytes);
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "";
}

std::string with_body(const std::string& body) {
  return encode({Type::info, 0, 0, 0, json::object(), {}}).substr(0, kPrefix) + body;
}

json nested(int depth) {
  json value = json::object();
  for (int level = 1; level < depth; ++level) value = json{{"deeper", value}};
  return value;
}

}  // namespace

TEST(Codec, prefix_is_the_twenty_documented_bytes) {
  std::string bytes = encode({Type::execute, -1, 0x01020304, 0x1122334455667788, {{"a", 1}}, {}});
  EXPECT_EQ(bytes, std::string("\x02\x00"                          // type
                               "\x00\x00"                          // zero
                               "\xff\xff\xff\xff"                  // rank
                               "\x04\x03\x02\x01"                  // epoch
                               "\x88\x77\x66\x55\x44\x33\x22\x11"  // id
                               "\x81\xa1"
                               "a"
                               "\x01",
                               24));
}

TEST(Codec, every_field_comes_back) {
  Message message{
      Type::done,
      7,
      3,
      UINT64_MAX,
      {{"text", "grüße"}, {"bytes", json::binary({0, 255, 10})}, {"nothing", nullptr}, {"list", {1, -1, 1.5, true}}},
      {}};
  Message back = decode(encode(message));
  EXPECT_EQ(back.type, message.type);
  EXPECT_EQ(back.rank, message.rank);
  EXPECT_EQ(back.epoch, message.epoch);
  EXPECT_EQ(back.id, message.id);
  EXPECT_EQ(back.body, message.body);
  EXPECT_TRUE(back.descriptors.empty());
}

TEST(Codec, only_the_types_there_are_are_taken) {
  std::string bytes = encode({Type::info, 0, 0, 0, json::object(), {}});
  std::set<std::string> names;
  for (int number = 0; number <= UINT16_MAX; ++number) {
    bytes[0] = static_cast<char>(number & 0xff);
    bytes[1] = static_cast<char>(number >> 8);
    std::string name = name_of(static_cast<Type>(number));
    if (name == "type " + std::to_string(number)) {
      ASSERT_EQ(refusal(bytes), "unknown message: type " + std::to_string(number));
    } else {
      ASSERT_EQ(refusal(bytes), "") << name;
      EXPECT_TRUE(names.insert(name).second) << name << " is the name of two types";
    }
  }
  EXPECT_EQ(names.size(), 34u) << "a type was added: is it in WIRE.md, and who may send it?";
}

TEST(Codec, truncated_at_every_byte_is_refused) {
  std::string bytes =
      encode({Type::output,
              1,
              2,
              3,
              {{"stream", 1}, {"bytes", json::binary({1, 2, 3, 4})}, {"inner", {{"list", {1, "two", 3.25}}}}},
              {}});
  for (size_t length = 0; length < bytes.size(); ++length) {
    // A copy, so that reading over its end is caught by the address sanitizer.
    std::string cut = bytes.substr(0, length);
    EXPECT_EQ(refusal(cut), "message cut short") << length;
  }
}

TEST(Codec, bytes_after_the_body_are_refused) {
  std::string bytes = encode({Type::info, 0, 0, 0, {{"a", 1}}, {}});
  EXPECT_EQ(refusal(bytes + '\0'), "bytes after the message's body");
  EXPECT_EQ(refusal(bytes + bytes), "bytes after the message's body");
}

TEST(Codec, reserved_bytes_must_be_zero) {
  for (size_t at : {2u, 3u}) {
    std::string bytes = encode({Type::info, 0, 0, 0, json::object(), {}});
    bytes[at] = 1;
    EXPECT_EQ(refusal(bytes), "reserved message bytes are not zero");
  }
}

TEST(Codec, body_must_be_a_map) {
  for (const json& body : {json(nullptr), json(1), json("text"), json::array(), json::array({1, 2}), json(1.5),
                           json(true), json::binary({1})}) {
    EXPECT_EQ(refusal(encode({Type::info, 0, 0, 0, body, {}})), "a message's body must be a map") << body;
  }
}

TEST(Codec, map_with_keys_that_are_no_strings_is_refused) {
  EXPECT_NE(refusal(with_body("\x81\x01\x01")), "");               // {1: 1}
  EXPECT_NE(refusal(with_body(std::string("\x81\x80\x01"))), "");  // {{}: 1}
  EXPECT_NE(refusal(with_body("\x81\xc4\x01k\x01")), "");          // a binary key
}

TEST(Codec, extension_types_and_the_unused_tag_are_refused) {
  std::string key =
      "\x81\xa1"
      "k";
  for (int tag : {0xc1, 0xc7, 0xc8, 0xc9, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8}) {
    EXPECT_NE(refusal(with_body(key + static_cast<char>(tag) + std::string(40, '\0'))).find("extension"),
              std::string::npos)
        << tag;
  }
}

TEST(Codec, nesting_is_taken_to_the_limit_and_not_beyond) {
  EXPECT_EQ(refusal(encode({Type::info, 0, 0, 0, nested(kMaxDepth), {}})), "");
  EXPECT_EQ(refusal(encode({Type::info, 0, 0, 0, nested(kMaxDepth + 1), {}})), "message nested too deeply");
}

TEST(Codec, depth_bomb_is_refused_at_once) {
  // Sixteen megabytes of '[': the JSON library's own reader would recurse once for each.
  EXPECT_EQ(refusal(with_body(std::string(16u << 20, '\x91'))), "message nested too deeply");
  EXPECT_EQ(refusal(with_body(std::string("\x81\xa1"
                                          "k") +
                              std::string(1u << 20, '\x91'))),
            "message nested too deeply");
}

TEST(Codec, counts_and_lengths_far_beyond_the_bytes_cost_nothing) {
  for (const std::string& huge :
       {std::string("\xdf\xff\xff\xff\xff", 5), std::string("\x81\xa1k\xdd\xff\xff\xff\xff", 8),
        std::string("\x81\xa1k\xc6\xff\xff\xff\xff", 8), std::string("\x81\xa1k\xdb\xff\xff\xff\xff", 8),
        std::string("\x81\xdb\xff\xff\xff\xff", 6)}) {
    EXPECT_EQ(refusal(with_body(huge)), "message cut short");
  }
}

TEST(Codec, names_are_those_of_the_enumeration) {
  EXPECT_EQ(name_of(Type::execute), "execute");
  EXPECT_EQ(name_of(Type::warmed), "warmed");
  EXPECT_EQ(name_of(static_cast<Type>(77)), "type 77");
}

}  // namespace ddip::wire
