#include "ddip/launch/devices.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "ddip/base/error.h"
#include "ddip/launch/flag_values.h"
#include "ddip/launch/rank_list.h"

namespace ddip::launch {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr int kMaxWritten = 256;

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> items;
  while (true) {
    const std::size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    items.emplace_back(item);
    if (comma == std::string_view::npos) return items;
    text.remove_prefix(comma + 1);
  }
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

const Device* find_device(const std::vector<Device>& devices, int index) {
  const auto found = std::find_if(devices.begin(), devices.end(), [&](const Device& d) { return d.index == index; });
  return found == devices.end() ? nullptr : &*found;
}

// One entry of CUDA_VISIBLE_DEVICES; a UUID may be cut short as long as only one device begins with it.
const Device* named_by(const std::vector<Device>& all, const std::string& entry) {
  if (is_number(entry)) return entry.size() > 6 ? nullptr : find_device(all, std::stoi(entry));
  if (!entry.starts_with("GPU-")) return nullptr;
  const Device* only = nullptr;
  for (const Device& device : all) {
    if (!device.uuid.starts_with(entry)) continue;
    if (only != nullptr) return nullptr;
    only = &device;
  }
  return only;
}

std::vector<Device> read_devices(const std::string& text) {
  const FlagText place{"test devices " + shown(text), text};
  std::vector<Device> devices;
  const auto add = [&](std::string name, std::uint64_t memory) {
    const int index = static_cast<int>(devices.size());
    devices.push_back({index, std::move(name), memory, "GPU-test-" + std::to_string(index)});
  };
  if (text.empty()) return devices;
  if (is_number(text)) {
    const auto count = whole_number(place, {"a number of devices", 0, kMaxWritten});
    for (std::uint64_t i = 0; i < count; ++i) add("test", 0);
    return devices;
  }
  for (const std::string& item : split(text)) {
    const std::size_t colon = item.find(':');
    if (colon == std::string::npos || colon == 0) refuse(place, "expected a number such as 4, or NAME:GIB,NAME:GIB");
    add(item.substr(0, colon), kGiB * whole_number({place.where, item.substr(colon + 1)}, {"GiB", 0, 100000}));
  }
  return devices;
}

class WrittenDevices : public DeviceList {
 public:
  explicit WrittenDevices(std::vector<Device> devices) : devices_(std::move(devices)) {}
  std::vector<Device> devices() const override { return devices_; }

 private:
  const std::vector<Device> devices_;
};

}  // namespace

std::unique_ptr<DeviceList> written_devices(const std::string& text, std::optional<std::string> visible) {
  return std::make_unique<WrittenDevices>(visible_devices(read_devices(text), visible));
}

std::vector<Device> visible_devices(const std::vector<Device>& all, const std::optional<std::string>& visible) {
  if (!visible) return all;
  std::vector<Device> seen;
  for (const std::string& entry : split(*visible)) {
    const Device* device = named_by(all, entry);
    if (device == nullptr || find_device(seen, device->index) != nullptr) break;
    seen.push_back(*device);
  }
  return seen;
}

std::vector<int> choose_gpus(const std::string& spec, const std::vector<Device>& devices, const std::string& where) {
  const std::string place = where + " " + shown(spec) + ": ";
  std::vector<int> chosen;
  if (spec == "all") {
    for (const Device& device : devices) chosen.push_back(device.index);
  } else {
    for (const auto& [first, last] : parse_ranges(spec, where, "GPU")) {
      // Ends at the first that is missing, so a huge range costs nothing.
      for (std::int64_t index = first; index <= last; ++index) {
        const int gpu = static_cast<int>(index);
        if (find_device(devices, gpu) == nullptr) {
          throw ConfigError(place + "GPU " + std::to_string(gpu) + " is not there; " +
                            (devices.empty() ? "no GPU is visible" : "there are: " + describe(devices)));
        }
        if (std::find(chosen.begin(), chosen.end(), gpu) != chosen.end()) {
          throw ConfigError(place + "GPU " + std::to_string(gpu) +
                            " is listed twice; expected each once (several workers per GPU: add -n N)");
        }
        chosen.push_back(gpu);
      }
    }
  }
  if (chosen.empty()) throw ConfigError(place + "no GPU is visible; for CPU workers expected -n N without -g");
  return chosen;
}

std::string describe(const std::vector<Device>& devices) {
  std::string text;
  for (const Device& device : devices) {
    if (!text.empty()) text += ", ";
    text += std::to_string(device.index) + " (" + device.name;
    if (device.memory > 0) text += ", " + std::to_string((device.memory + kGiB / 2) / kGiB) + " GiB";
    text += ")";
  }
  return text;
}

}  // namespace ddip::launch
