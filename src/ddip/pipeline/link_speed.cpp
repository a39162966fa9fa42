#include "ddip/pipeline/link_speed.h"

#include <algorithm>
#include <chrono>
#include <limits>

namespace ddip::pipeline {
namespace {

// Longer than a message's latency, short enough to be sent a few times.
constexpr int64_t kLinkBytes = 4 << 20;
constexpr int kTimes = 3;

}  // namespace

double link_bytes_per_ms(tensors::Communicator& ranks, at::Device device) {
  if (ranks.name() != "shm") device = at::kCPU;
  const int world = ranks.world(), rank = ranks.rank();
  if (world < 2) return 0;
  const at::Tensor sent = at::zeros({kLinkBytes}, at::TensorOptions(at::kByte).device(device));
  at::Tensor received = at::empty_like(sent);
  double best = std::numeric_limits<double>::infinity();
  for (int time = 0; time <= kTimes; ++time) {
    ranks.barrier();
    const auto begin = std::chrono::steady_clock::now();
    auto comes = ranks.start_receive(received, (rank + world - 1) % world);
    auto goes = ranks.start_send(sent, (rank + 1) % world);
    comes->wait();
    goes->wait();
    if (device.is_cuda()) received.view(-1)[0].item();  // it has come when the GPU says so
    best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  at::Tensor slowest = at::full({1}, best, at::kDouble);
  ranks.all_reduce(slowest, comm::Reduction::max);
  return kLinkBytes / slowest.item<double>();
}

}  // namespace ddip::pipeline
