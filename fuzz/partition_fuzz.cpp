// Any bytes as a partition's file: a plan or a ConfigError of one line, nothing else; what is accepted is written and
// read as itself. Or a sound file with some bytes replaced, so that the checks behind the syntax are reached.
#include <algorithm>
#include <cstdint>
#include <string>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/partition/file.h"

using namespace ddip::partition;

namespace {

constexpr const char* kSound = R"({
  "ddip_partition": 1, "model": "net.py:make", "devices": 2,
  "stages": [{"device":0,"layers":["a","b"]}, {"device":1,"layers":["c"]}],
  "memory_cap_bytes": 0, "recompute": false, "parameter_copies": 4.0, "link_bytes_per_ms": 0.0,
  "edges": [{"from":"a","to":"b","value":"x","shape":"float32[2]","bytes":8}, {"from":"b","to":"c","value":"y","shape":"float32[2]","bytes":8}],
  "layers": [
    {"name":"a","forward_ms":1.0,"backward_ms":2.0,"parameter_bytes":8,"activation_bytes":8},
    {"name":"b","forward_ms":1.0,"backward_ms":2.0,"parameter_bytes":8,"activation_bytes":8},
    {"name":"c","forward_ms":1.0,"backward_ms":2.0,"parameter_bytes":8,"activation_bytes":8}]
})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 3, size - 3);
  static const std::string sound = plan_text(read_plan(kSound, "sound"));
  if (data[0] % 2 == 1) {
    const size_t at = (static_cast<size_t>(data[1]) * 256 + data[2]) % sound.size();
    text = std::string(sound).replace(at, std::min(text.size(), sound.size() - at), text);
  }
  try {
    const Plan plan = read_plan(text, "file");
    DDIP_CHECK(plan_text(read_plan(plan_text(plan), "again")) == plan_text(plan), "what is written is what was read");
  } catch (const ddip::ConfigError& error) {
    DDIP_CHECK(std::string(error.what()).find('\n') == std::string::npos, "one line");
  }
  return 0;
}
