// Message ⇄ frame body: twenty bytes of header, then one MessagePack map. Nothing is unpickled, ever.
#pragma once

#include <string>
#include <string_view>

#include "ddip/wire/message.h"

namespace ddip::wire {

constexpr int kMaxDepth = 32;

// The descriptors are not part of the bytes; net/ carries them.
std::string encode(const Message& message);

// Throws ProtocolError for anything that encode() could not have written: short, unknown type, nested deeper than
// kMaxDepth, trailing bytes, a body that is not a map.
Message decode(std::string_view bytes);

}  // namespace ddip::wire
