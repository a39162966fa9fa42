// Any bytes as a plan's file: a plan that is right or a ConfigError, nothing else; what is accepted is written and read
// as itself. Or a sound plan with one action replaced by the bytes, so that the checker is reached.
#include <cstdint>
#include <string>

#include "ddip/base/check.h"
#include "ddip/base/error.h"
#include "ddip/schedule/checker.h"
#include "ddip/schedule/file.h"

using namespace ddip::schedule;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    if (data[0] % 2 == 0) {
      const Plan plan = from_json(text);
      DDIP_CHECK(to_json(from_json(to_json(plan))) == to_json(plan), "what is written is what was read");
    } else {
      static const Plan sound = make_plan({.schedule = "async_1f1b", .stages = 2, .micro_batches = 3});
      Plan plan = sound;
      auto& actions = plan.ranks[data[0] / 2 % 2];
      actions[data[1] % actions.size()] = parse_action(text);
      const bool same = plan.ranks == sound.ranks;
      DDIP_CHECK(check(plan).ok() == same, "a plan with another action is refused");
    }
  } catch (const ddip::ConfigError&) {
  }
  return 0;
}
