#include "ddip/pipeline/lane.h"

#include <algorithm>
#include <cstring>

#include "ddip/base/error.h"
#include "ddip/pipeline/packing.h"

namespace ddip::pipeline {
namespace {

using tensors::CudaRuntime;
using tensors::IpcHandle;

// CUDA shares whole pieces of 2 MiB: memory that is smaller would lie somewhere within one.
constexpr size_t kLeastBytes = size_t{4} << 20;

void wait_for_stream(at::Device device) {
  c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

at::Tensor tensor_at(std::byte* place, const Layout& layout, at::Device device) {
  return at::for_blob(place, layout.sizes)
      .strides(layout.strides)
      .options(at::TensorOptions().dtype(layout.type).device(device))
      .target_device(device)
      .make_tensor();
}

// The one GPU of all these stages, with its number.
std::optional<at::Device> one_gpu(const std::vector<at::Device>& stages) {
  std::optional<at::Device> gpu;
  for (at::Device device : stages) {
    if (!device.is_cuda()) return {};
    if (!device.has_index()) device = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
    if (gpu && *gpu != device) return {};
    gpu = device;
  }
  return gpu;
}

bool all_have(tensors::Communicator& ranks, bool mine) {
  at::Tensor flag = at::full({1}, mine ? 1 : 0, at::kLong);
  ranks.all_reduce(flag, comm::Reduction::min);
  return flag.item<int64_t>() == 1;
}

// A small piece of memory that the other ranks try to open.
class Trial {
 public:
  explicit Trial(at::Device device) : guard_(device) {
    try {
      memory_ = CudaRuntime::get().allocate(kLeastBytes);
      offer_ = CudaRuntime::get().offer(memory_);
      made_ = true;
    } catch (const ConfigError&) {
    }
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    if (memory_) CudaRuntime::get().free(memory_);
  }

  bool made() const { return made_; }
  const IpcHandle& offer() const { return offer_; }

  static bool opens(const IpcHandle& handle) {
    try {
      CudaRuntime::get().close(CudaRuntime::get().open(handle));
      return true;
    } catch (const ConfigError&) {
      return false;
    }
  }

 private:
  c10::DeviceGuard guard_;
  void* memory_ = nullptr;
  IpcHandle offer_{};
  bool made_ = false;
};

}  // namespace

std::optional<at::Device> gpu_of_lanes(tensors::Communicator& ranks, const std::vector<at::Device>& stages,
                                       const std::set<int>& senders) {
  std::optional<at::Device> gpu = one_gpu(stages);
  if (!all_have(ranks, gpu && ranks.name() == "shm")) return {};
  Trial trial(*gpu);
  if (!all_have(ranks, trial.made())) return {};
  at::Tensor mine = at::empty({static_cast<int64_t>(sizeof(IpcHandle))}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), &trial.offer(), sizeof(IpcHandle));
  at::Tensor all = ranks.all_gather(mine);
  bool opened = std::ranges::all_of(senders, [&](int rank) {
    IpcHandle theirs;
    std::memcpy(&theirs, all[rank].const_data_ptr(), sizeof theirs);
    return Trial::opens(theirs);
  });
  if (!all_have(ranks, opened)) return {};
  return gpu;
}

// --- LaneSender

LaneSender::~LaneSender() {
  if (memories_.empty()) return;
  try {
    c10::DeviceGuard guard(device_);
    for (std::byte* memory : memories_) CudaRuntime::get().free(memory);
  } catch (const std::exception&) {
    // A GPU that has failed frees everything when the process ends.
  }
}

bool LaneSender::takes(const std::vector<at::Tensor>& tensors) const {
  return !tensors.empty() &&
         std::ranges::all_of(tensors, [this](const at::Tensor& tensor) { return tensor.device() == device_; });
}

void LaneSender::grow(size_t bytes) {
  // By half at least, so that all memories together are no more than three times the last one.
  size_t slot = std::max({aligned(bytes), slot_bytes_ + aligned(slot_bytes_ / 2), aligned(kLeastBytes / slots_)});
  auto* memory = static_cast<std::byte*>(CudaRuntime::get().allocate(slot * slots_));
  try {
    offer_ = CudaRuntime::get().offer(memory);
    memories_.push_back(memory);
  } catch (...) {
    CudaRuntime::get().free(memory);
    throw;
  }
  slot_bytes_ = slot;
}

LanePlace LaneSender::put(const std::vector<at::Tensor>& tensors) {
  c10::DeviceGuard guard(device_);
  size_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += aligned(tensor.nbytes());
  if (bytes > slot_bytes_ || memories_.empty()) grow(bytes);
  const size_t begin = messages_++ % slots_ * slot_bytes_;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  std::byte* out = memories_.back() + begin;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.nbytes() == 0) continue;
    at::Tensor flat = tensor.as_strided({tensor.numel()}, {1});
    flat.record_stream(stream);  // who made it on another one may go before it is copied
    tensor_at(out, {flat.scalar_type(), {flat.numel()}, {1}}, device_).copy_(flat, /*non_blocking=*/true);
    out += aligned(tensor.nbytes());
  }
  return {.memory = offer_, .number = memories_.size(), .offset = begin, .bytes = bytes};
}

// --- LaneReceiver

LaneReceiver::~LaneReceiver() { close(); }

void LaneReceiver::close() {
  if (!memory_) return;
  try {
    c10::DeviceGuard guard(device_);
    wait_for_stream(device_);  // which may still read from it
    CudaRuntime::get().close(memory_);
  } catch (const std::exception&) {
    // A GPU that has failed reads nothing any more, and frees everything when the process ends.
  }
  memory_ = nullptr;
}

void LaneReceiver::open(const LanePlace& place) {
  if (memory_ && number_ == place.number) return;
  close();
  memory_ = static_cast<std::byte*>(CudaRuntime::get().open(place.memory));
  number_ = place.number;
}

Value LaneReceiver::take(const LanePlace& place, std::string_view structure) {
  c10::DeviceGuard guard(device_);
  open(place);
  size_t offset = 0;
  Value value = decode_structure(structure, [&](const Layout& layout) {
    size_t bytes = bytes_within(layout, offset, place.bytes);
    auto options = at::TensorOptions().dtype(layout.type).device(device_);
    at::Tensor own = at::empty_strided(layout.sizes, layout.strides, options);
    if (bytes > 0) own.copy_(tensor_at(memory_ + place.offset + offset, layout, device_), /*non_blocking=*/true);
    offset += aligned(bytes);
    return own;
  });
  return value;
}

}  // namespace ddip::pipeline
