#include "ddip/net/transfer.h"

#include <sys/socket.h>

#include <cstring>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/net/frame.h"

namespace ddip::net {

ssize_t receive(int socket, std::string& into, std::deque<Fd>& received, int flags) {
  iovec part{into.data(), into.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors * 4)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  if (count < 0) return count;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t number = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t index = 0; index < number; ++index) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + index * sizeof(int), sizeof fd);
      received.push_back(above_standard(Fd(fd)));
    }
  }
  // At most the rest of one frame and the first bytes of the next are unread, so more belong to no frame at all.
  if (received.size() > 2 * kMaxDescriptors) throw ProtocolError("more descriptors came than the frames announce");
  if (message.msg_flags & MSG_CTRUNC) throw ProtocolError("descriptors were lost on the way (limit reached)");
  return count;
}

ssize_t transmit(int socket, std::string_view bytes, const std::vector<int>& descriptors, int flags) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)];
  if (!descriptors.empty()) {
    DDIP_CHECK(descriptors.size() <= kMaxDescriptors, "encode_frame refuses more");
    size_t size = sizeof(int) * descriptors.size();
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), descriptors.data(), size);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | flags);
}

}  // namespace ddip::net
