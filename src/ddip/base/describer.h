// Asks something what it waits for, from another thread, across libraries that share no types: two addresses.
#pragma once

#include <cstddef>

namespace ddip {

struct Describer {
  void* object = nullptr;  // lives as long as the process
  // Writes at most `size` bytes and returns how many; 0: it waits for nothing.
  size_t (*describe)(void* object, char* out, size_t size) = nullptr;
};

}  // namespace ddip
