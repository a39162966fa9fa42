// The GPUs of this machine, found without touching CUDA: a CUDA context in a process that forks breaks its children.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ddip::launch {

struct Device {
  int index = 0;             // nvidia-smi's number: PCI bus order
  std::string name;          // "NVIDIA A100-SXM4-80GB"
  std::uint64_t memory = 0;  // bytes; 0: unknown
  std::string uuid = "";     // "GPU-…"; empty where there is none
};

// Where devices come from: the driver (nvidia_devices.cpp), or a list written by a test.
class DeviceList {
 public:
  virtual ~DeviceList() = default;

  // Those this user may see, in the order they should be used. Asks anew at each call.
  virtual std::vector<Device> devices() const = 0;
};

// `visible` is CUDA_VISIBLE_DEVICES where it is set. Without a driver or its library the list is empty.
std::unique_ptr<DeviceList> nvidia_devices(std::optional<std::string> visible);

// "4": four GPUs without a size. "A100:80,T4:16": names and GiB. "" or "0": none. ConfigError on anything else.
std::unique_ptr<DeviceList> written_devices(const std::string& text, std::optional<std::string> visible);

// What CUDA_VISIBLE_DEVICES leaves of `all`, in its order, by its own rules: numbers or (beginnings of) GPU UUIDs,
// and the list ends at the first entry that names no device. Limits: numbers are read as nvidia-smi's, which is
// what CUDA_DEVICE_ORDER=PCI_BUS_ID means; MIG slices are not known and hide the rest.
std::vector<Device> visible_devices(const std::vector<Device>& all, const std::optional<std::string>& visible);

// "3,1", "0-3" or "all" as device numbers in the order written. ConfigError, listing the devices that are there,
// for one that is not; also for a device listed twice and for "all" of none.
std::vector<int> choose_gpus(const std::string& spec, const std::vector<Device>& devices,
                             const std::string& where = "-g");

// "0 (A100, 80 GiB), 1 (A100, 80 GiB)".
std::string describe(const std::vector<Device>& devices);

}  // namespace ddip::launch
