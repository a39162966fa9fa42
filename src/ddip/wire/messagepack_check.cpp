#include "ddip/wire/messagepack_check.h"

#include <cstdint>
#include <vector>

#include "ddip/base/error.h"

namespace ddip::wire {
namespace {

class Walker {
 public:
  Walker(std::string_view bytes, int max_depth) : bytes_(bytes), max_depth_(max_depth) {}

  void walk() {
    pending_.push_back(1);  // values still to come at each level
    while (!pending_.empty()) {
      if (pending_.back() == 0) {
        pending_.pop_back();
        continue;
      }
      --pending_.back();
      value();
    }
    if (at_ != bytes_.size()) throw ProtocolError("bytes after the message's body");
  }

 private:
  void value() {
    uint8_t tag = static_cast<uint8_t>(take(1)[0]);
    if (tag <= 0x7f || tag >= 0xe0) return;                  // small integers
    if (tag <= 0x8f) return open(2 * uint64_t(tag & 0x0f));  // fixmap
    if (tag <= 0x9f) return open(tag & 0x0f);                // fixarray
    if (tag <= 0xbf) return skip(tag & 0x1f);                // fixstr
    switch (tag) {
      case 0xc0:
      case 0xc2:
      case 0xc3: return;  // nil, false, true
      case 0xc4:
      case 0xd9: return skip(number(1));  // bin8, str8
      case 0xc5:
      case 0xda: return skip(number(2));
      case 0xc6:
      case 0xdb: return skip(number(4));
      case 0xca:
      case 0xce:
      case 0xd2: return skip(4);  // float32, u32, i32
      case 0xcb:
      case 0xcf:
      case 0xd3: return skip(8);
      case 0xcc:
      case 0xd0: return skip(1);
      case 0xcd:
      case 0xd1: return skip(2);
      case 0xdc: return open(number(2));  // array16
      case 0xdd: return open(number(4));
      case 0xde: return open(2 * number(2));  // map16
      case 0xdf: return open(2 * number(4));
      default: throw ProtocolError("a MessagePack extension type, which ddip never sends");
    }
  }

  void open(uint64_t values) {
    if (static_cast<int>(pending_.size()) > max_depth_) throw ProtocolError("message nested too deeply");
    pending_.push_back(values);
  }

  uint64_t number(size_t width) {
    uint64_t value = 0;
    for (char byte : take(width)) value = value << 8 | static_cast<uint8_t>(byte);
    return value;
  }

  std::string_view take(size_t count) {
    if (bytes_.size() - at_ < count) throw ProtocolError("message cut short");
    std::string_view part = bytes_.substr(at_, count);
    at_ += count;
    return part;
  }

  void skip(uint64_t count) { take(count); }

  std::string_view bytes_;
  int max_depth_;
  size_t at_ = 0;
  std::vector<uint64_t> pending_;
};

}  // namespace

void check_messagepack(std::string_view bytes, int max_depth) { Walker(bytes, max_depth).walk(); }

}  // namespace ddip::wire
