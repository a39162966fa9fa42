#include "ddip/tensors/cuda_slab.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/tensors/cuda_runtime.h"

namespace ddip::tensors {
CudaSlab::CudaSlab(comm::shm::Collectives& ranks, at::Device device, size_t bytes)
    : rank_(ranks.rank()), device_(device), bytes_(bytes), memory_(static_cast<size_t>(ranks.world()), nullptr) {
  c10::DeviceGuard guard(device);
  const CudaRuntime& cuda = CudaRuntime::get();
  std::string error;
  auto attempt = [&](auto&& body) {
    try {
      if (error.empty()) body();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  };
  IpcHandle mine{};
  attempt([&] {
    memory_[static_cast<size_t>(rank_)] = static_cast<std::byte*>(cuda.allocate(bytes_));
    mine = cuda.offer(memory_[static_cast<size_t>(rank_)]);
  });
  // Two rounds: nobody opens what somebody failed to make.
  auto agree = [&] {
    int32_t failed = error.empty() ? 0 : ranks.world() - rank_;
    ranks.all_reduce(&failed, 1, {comm::Element::i32, comm::Reduction::max});
    if (failed == 0) return;
    release();
    throw ConfigError(fmt::format("{} MiB of shared GPU memory are not to be had on rank {}{}", bytes >> 20,
                                  ranks.world() - failed, error.empty() ? "" : ": " + error));
  };
  agree();
  std::vector<IpcHandle> handles(memory_.size());
  ranks.all_gather(&mine, handles.data(), sizeof mine);
  attempt([&] {
    for (size_t peer = 0; peer < memory_.size(); ++peer) {
      if (peer != static_cast<size_t>(rank_)) memory_[peer] = static_cast<std::byte*>(cuda.open(handles[peer]));
    }
  });
  agree();
}

CudaSlab::~CudaSlab() { release(); }

void CudaSlab::release() noexcept try {
  c10::DeviceGuard guard(device_);
  const CudaRuntime& cuda = CudaRuntime::get();
  for (size_t peer = 0; peer < memory_.size(); ++peer) {
    if (!memory_[peer]) continue;
    if (peer == static_cast<size_t>(rank_))
      cuda.free(memory_[peer]);
    else
      cuda.close(memory_[peer]);
    memory_[peer] = nullptr;
  }
} catch (const std::exception&) {
  // A GPU that has failed cannot be chosen; it frees everything when the process ends.
}

}  // namespace ddip::tensors
