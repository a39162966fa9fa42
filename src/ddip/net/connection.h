// Frames and descriptors over one connected unix socket, on a Loop. Never blocks.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddip/base/fd.h"
#include "ddip/net/frame.h"
#include "ddip/net/loop.h"

namespace ddip::net {

// The reason when it was the other side that closed, or ended.
inline constexpr const char* kClosedByPeer = "closed by peer";

struct Parcel {
  std::string body;
  std::vector<Fd> descriptors;
};

class Connection {
 public:
  struct Events {
    std::function<void(Parcel)> on_parcel;
    // Exactly once, unless the connection is destroyed first. The reason is a sentence: "closed by peer",
    // "checksum mismatch", … Nothing is delivered after it.
    std::function<void(const std::string& reason)> on_closed;
    // The send queue fell back under half of its bound; optional. Never called from inside send().
    std::function<void()> on_drained;
  };

  Connection(Loop& loop, Fd socket, uint32_t body_cap, Events events);
  ~Connection();

  // Sends a frame, or queues what the socket does not take now; the descriptors are duplicated now, the caller keeps
  // theirs. After close it does nothing. This and queued_bytes() may be called from any thread; the rest is for the
  // loop's.
  void send(std::string_view body, const std::vector<int>& descriptors = {});

  // Sends a frame together with the next one, at the latest in half a millisecond: the peer is woken once for both.
  void send_soon(std::string_view body);

  // Bytes that the peer has not taken yet: senders that can wait or drop look at it.
  size_t queued_bytes() const;

  void raise_cap(uint32_t body_cap);
  void close(const std::string& reason);
  bool open() const;
  int socket() const;

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // shared with the callbacks that run while the owner destroys the connection
};

}  // namespace ddip::net
