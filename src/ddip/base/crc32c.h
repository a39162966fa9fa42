// CRC-32C (Castagnoli), as in iSCSI: guards frames and journal records against flipped bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ddip {

// Continue a checksum: crc32c("ab") == crc32c("b", crc32c("a")).
uint32_t crc32c(std::string_view bytes, uint32_t seed = 0);

}  // namespace ddip
