#include "ddip/net/blocking.h"

#include <poll.h>

#include <cerrno>
#include <cstring>

#include "ddip/base/error.h"
#include "ddip/net/transfer.h"

namespace ddip::net {

void send_blocking(int socket, std::string_view body, const std::vector<int>& descriptors) {
  std::string bytes = encode_frame(body, descriptors.size());
  std::string_view rest = bytes;
  std::vector<int> to_pass = descriptors;
  while (!rest.empty()) {
    ssize_t count = transmit(socket, rest, to_pass, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == ETOOMANYREFS)) {
      pollfd event{socket, POLLOUT, 0};
      ::poll(&event, 1, 100);
      continue;
    }
    if (count < 0) throw PeerLost(std::string("cannot send: ") + std::strerror(errno));
    to_pass.clear();
    rest.remove_prefix(static_cast<size_t>(count));
  }
}

bool BlockingReader::wait(std::chrono::nanoseconds patience) const {
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience);
  timespec time{seconds.count(), (patience - seconds).count()};
  pollfd event{socket_, POLLIN, 0};
  return ::ppoll(&event, 1, &time, nullptr) > 0;
}

std::vector<Parcel> BlockingReader::read_available() {
  ssize_t count;
  do count = receive(socket_, scratch_, received_, 0);
  while (count < 0 && errno == EINTR);
  if (count < 0) throw PeerLost(std::string("cannot receive: ") + std::strerror(errno));
  if (count == 0) throw PeerLost("closed by peer");
  reader_.feed({scratch_.data(), static_cast<size_t>(count)});
  std::vector<Parcel> parcels;
  while (std::optional<Frame> frame = reader_.next()) {
    if (received_.size() < frame->descriptors) throw ProtocolError("frame without its descriptors");
    Parcel& parcel = parcels.emplace_back();
    parcel.body = std::move(frame->body);
    for (int index = 0; index < frame->descriptors; ++index) {
      parcel.descriptors.push_back(std::move(received_.front()));
      received_.pop_front();
    }
  }
  return parcels;
}

}  // namespace ddip::net
