#include "ddip/base/cores.h"

#include <sched.h>

namespace ddip {

int usable_cores() {
  cpu_set_t ours;
  CPU_ZERO(&ours);
  if (::sched_getaffinity(0, sizeof ours, &ours) != 0) return 1;
  return CPU_COUNT(&ours);
}

}  // namespace ddip
