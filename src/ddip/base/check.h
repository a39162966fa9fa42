// DDIP_CHECK(condition, "why"): a bug in our own code stops the process at once, with file and line.
#pragma once

#include <cstdio>
#include <cstdlib>

#define DDIP_CHECK(condition, why)                                                                \
  do {                                                                                            \
    if (!(condition)) [[unlikely]] {                                                              \
      std::fprintf(stderr, "ddip: bug at %s:%d: %s (%s)\n", __FILE__, __LINE__, why, #condition); \
      std::abort();                                                                               \
    }                                                                                             \
  } while (false)
