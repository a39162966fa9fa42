// NVML is opened at run time: no header, no link, and a machine without a driver has an empty list.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <memory>
#include <tuple>
#include <utility>

#include "ddip/launch/devices.h"

namespace ddip::launch {
namespace {

// From nvml.h, whose layout is frozen. PciInfo's first four fields are the same in every version of the call.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlPciInfo {
  std::array<char, 16> bus_id_legacy;
  unsigned int domain, bus, device, device_id, subsystem_id;
  std::array<char, 32> bus_id;
};
constexpr int kSuccess = 0;

struct LibraryCloser {
  void operator()(void* library) const { dlclose(library); }
};

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) return;
    load(shutdown_, "nvmlShutdown");
    load(count_, "nvmlDeviceGetCount_v2");
    load(by_index_, "nvmlDeviceGetHandleByIndex_v2");
    load(name_, "nvmlDeviceGetName");
    load(uuid_, "nvmlDeviceGetUUID");
    load(memory_, "nvmlDeviceGetMemoryInfo");
    load(pci_, "nvmlDeviceGetPciInfo_v3");
    if (pci_ == nullptr) load(pci_, "nvmlDeviceGetPciInfo");
    int (*init)() = nullptr;
    load(init, "nvmlInit_v2");
    const bool complete = init && shutdown_ && count_ && by_index_ && name_ && uuid_ && memory_ && pci_;
    ready_ = complete && init() == kSuccess;
  }
  Nvml(const Nvml&) = delete;
  ~Nvml() {
    if (ready_) shutdown_();
  }

  // In PCI bus order. A device that does not answer (fallen off the bus, no permission) is not there.
  std::vector<Device> devices() const {
    unsigned int count = 0;
    if (!ready_ || count_(&count) != kSuccess) return {};
    using Address = std::tuple<unsigned int, unsigned int, unsigned int>;
    std::vector<std::pair<Address, Device>> found;
    for (unsigned int i = 0; i < count; ++i) {
      NvmlDevice handle = nullptr;
      NvmlPciInfo pci{};
      std::array<char, 96> name{}, uuid{};
      NvmlMemory memory{};
      if (by_index_(i, &handle) != kSuccess || pci_(handle, &pci) != kSuccess) continue;
      if (name_(handle, name.data(), name.size()) != kSuccess) continue;
      if (uuid_(handle, uuid.data(), uuid.size()) != kSuccess) continue;
      memory_(handle, &memory);  // some integrated devices do not say: 0
      found.push_back({{pci.domain, pci.bus, pci.device},
                       {static_cast<int>(i), name.data(), static_cast<std::uint64_t>(memory.total), uuid.data()}});
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Device> devices;
    for (auto& [address, device] : found) devices.push_back(std::move(device));
    return devices;
  }

 private:
  template <class Function>
  void load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_.get(), name));
  }

  std::unique_ptr<void, LibraryCloser> library_;
  bool ready_ = false;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned int*) = nullptr;
  int (*by_index_)(unsigned int, NvmlDevice*) = nullptr;
  int (*name_)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*uuid_)(NvmlDevice, char*, unsigned int) = nullptr;
  int (*memory_)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*pci_)(NvmlDevice, NvmlPciInfo*) = nullptr;
};

class NvidiaDevices : public DeviceList {
 public:
  explicit NvidiaDevices(std::optional<std::string> visible) : visible_(std::move(visible)) {}
  std::vector<Device> devices() const override { return visible_devices(Nvml().devices(), visible_); }

 private:
  const std::optional<std::string> visible_;
};

}  // namespace

std::unique_ptr<DeviceList> nvidia_devices(std::optional<std::string> visible) {
  return std::make_unique<NvidiaDevices>(std::move(visible));
}

}  // namespace ddip::launch
