// Frames over a unix socket for a thread that has nothing else to do than wait for them.
#pragma once

#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "ddip/net/connection.h"
#include "ddip/net/frame.h"

namespace ddip::net {

// Sends one whole frame. Throws PeerLost.
void send_blocking(int socket, std::string_view body, const std::vector<int>& descriptors = {});

class BlockingReader {
 public:
  explicit BlockingReader(int socket) : socket_(socket), reader_(kBodyCap), scratch_(256u << 10, '\0') {}

  // Whether there is something to read; false when the time is over or a signal came.
  bool wait(std::chrono::nanoseconds patience) const;

  // Waits for at least some bytes; gives the frames that are whole by then (perhaps none). Throws PeerLost at the
  // end of the stream, ProtocolError at a bad frame.
  std::vector<Parcel> read_available();

 private:
  int socket_;
  FrameReader reader_;
  std::string scratch_;
  std::deque<Fd> received_;
};

}  // namespace ddip::net
