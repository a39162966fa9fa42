// recvmsg and sendmsg with descriptors beside the bytes: the only place that touches control messages.
#pragma once

#include <sys/types.h>

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "ddip/base/fd.h"

namespace ddip::net {

// One recvmsg into `into` (at its present size); descriptors are appended to `received`. As recvmsg: -1 with errno, 0
// at the end. Throws ProtocolError if descriptors were lost because a limit was reached.
ssize_t receive(int socket, std::string& into, std::deque<Fd>& received, int flags);

// One sendmsg; the descriptors travel with the first byte. As sendmsg.
ssize_t transmit(int socket, std::string_view bytes, const std::vector<int>& descriptors, int flags);

}  // namespace ddip::net
