// What a sum is multiplied with, then divided by. Between reduce.cpp and its kernels.
#pragma once

namespace ddip::comm {

struct Scaling {
  double factor = 1.0;
  double divisor = 1.0;
};

}  // namespace ddip::comm
