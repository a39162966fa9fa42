// Messages over a net::Connection: the codec and the socket put together, so that everybody else speaks Message.
#pragma once

#include <functional>
#include <memory>

#include "ddip/net/connection.h"
#include "ddip/wire/codec.h"

namespace ddip::wire {

class Channel {
 public:
  struct Events {
    std::function<void(Message)> on_message;  // what it throws closes the connection, with the error as the reason
    std::function<void(const std::string& reason)> on_closed;
    std::function<void()> on_drained;
  };

  Channel(net::Loop& loop, Fd socket, Events events, uint32_t body_cap = net::kBodyCap)
      : connection_(loop, std::move(socket), body_cap,
                    {[on_message = std::move(events.on_message)](net::Parcel parcel) {
                       Message message = decode(parcel.body);
                       message.descriptors = std::move(parcel.descriptors);
                       on_message(std::move(message));
                     },
                     std::move(events.on_closed), std::move(events.on_drained)}) {}

  // The message's descriptors are duplicated; it stays the caller's.
  void send(const Message& message) { send_encoded(encode(message), message.descriptors); }

  // With the next message, at the latest in half a millisecond.
  void send_soon(const Message& message) { connection_.send_soon(encode(message)); }

  // For a message that goes to many: encode it once.
  void send_encoded(const std::string& bytes, const std::vector<Fd>& descriptors) {
    std::vector<int> numbers;
    for (const Fd& fd : descriptors) numbers.push_back(fd.get());
    connection_.send(bytes, numbers);
  }

  size_t queued_bytes() const { return connection_.queued_bytes(); }
  void raise_cap(uint32_t body_cap) { connection_.raise_cap(body_cap); }
  void close(const std::string& reason) { connection_.close(reason); }
  bool open() const { return connection_.open(); }
  int socket() const { return connection_.socket(); }

 private:
  net::Connection connection_;
};

}  // namespace ddip::wire
