#include "ddip/pipeline/packing.h"

#include "ddip/base/error.h"

namespace ddip::pipeline {

size_t bytes_within(const Layout& layout, size_t offset, size_t end) {
  size_t elements = 1;
  for (int64_t size : layout.sizes) {
    if (size < 0 || (size > 0 && elements > (size_t{1} << 48) / static_cast<size_t>(size)))
      throw ProtocolError("a message between stages is broken: a tensor has an impossible size");
    elements *= static_cast<size_t>(size);
  }
  size_t bytes = elements * c10::elementSize(layout.type);
  size_t reach = at::detail::computeStorageNbytes(layout.sizes, layout.strides, c10::elementSize(layout.type));
  if (reach > bytes || bytes > end || offset > end - bytes)
    throw ProtocolError("a message between stages is broken: a tensor lies outside of it");
  return bytes;
}

}  // namespace ddip::pipeline
