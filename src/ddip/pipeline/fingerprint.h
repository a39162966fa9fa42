// A short mark of a value's contents, by which the last stage sees that its own reader gives the same samples as the
// first stage's.
#pragma once

#include "ddip/pipeline/value.h"

namespace ddip::pipeline {

// Never 0. Of a large tensor a part is looked at, spread over all of it.
uint64_t fingerprint(const Value& value);

}  // namespace ddip::pipeline
