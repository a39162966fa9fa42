// The control plane's round trip, beside the bare unix socket it stands on, in one run: client → coordinator → agent →
// worker's control thread and back, against a ping-pong of two threads over a socketpair.
//
//   echo GROUP_FOLDER ROUNDS     prints JSON: medians and p90 in microseconds
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "ddip/client/client.h"
#include "ddip/net/local_socket.h"

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

struct Quantiles {
  double median, p90;
};

Quantiles quantiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[values.size() * 9 / 10]};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: echo GROUP_FOLDER ROUNDS\n"), 2;
  int rounds = std::atoi(argv[2]);
  ddip::client::Client client({argv[1]}, "echo");

  auto [near, far] = ddip::net::socket_pair();
  std::thread peer([&far = far] {
    char byte;
    while (::recv(far.get(), &byte, 1, 0) == 1) ::send(far.get(), &byte, 1, MSG_NOSIGNAL);
  });
  std::vector<double> bare, whole;
  for (int round = 0; round < rounds; ++round) {  // A B A B
    auto begun = Clock::now();
    char byte = 1;
    ::send(near.get(), &byte, 1, MSG_NOSIGNAL);
    ::recv(near.get(), &byte, 1, 0);
    bare.push_back(microseconds(Clock::now() - begun));
    begun = Clock::now();
    client.request(ddip::wire::Type::ping, {{"rank", 0}}, std::chrono::milliseconds(5000));
    whole.push_back(microseconds(Clock::now() - begun));
  }
  ::shutdown(near.get(), SHUT_RDWR);
  peer.join();
  Quantiles socket = quantiles(bare), echo = quantiles(whole);
  std::printf("{\"socket_us\": %.1f, \"socket_p90_us\": %.1f, \"echo_us\": %.1f, \"echo_p90_us\": %.1f}\n",
              socket.median, socket.p90, echo.median, echo.p90);
  return 0;
}
