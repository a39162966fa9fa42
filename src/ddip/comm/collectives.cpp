#include "ddip/comm/collectives.h"

#include <fmt/format.h>

#include "ddip/base/error.h"
#include "ddip/comm/reduce.h"

namespace ddip::comm {

void require_reducible(const Typed& typed) {
  if (!can_reduce(typed.element, typed.reduction))
    throw ConfigError(fmt::format("{} does not exist for {}", name_of(typed.reduction), name_of(typed.element)));
}

void require_root(int root, int world) {
  if (root < 0 || root >= world) throw ConfigError(fmt::format("root {} is no rank (0-{})", root, world - 1));
}

}  // namespace ddip::comm
