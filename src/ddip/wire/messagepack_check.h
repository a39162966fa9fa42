#pragma once

#include <string_view>

namespace ddip::wire {

// Walks one MessagePack value without recursion or allocation per value. Throws ProtocolError if it is truncated,
// followed by other bytes, or nested deeper than max_depth: the JSON library's own reader recurses, so a few
// kilobytes of '[' from a broken peer would otherwise exhaust the stack.
void check_messagepack(std::string_view bytes, int max_depth);

}  // namespace ddip::wire
