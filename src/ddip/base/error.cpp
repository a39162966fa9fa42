#include "ddip/base/error.h"

#include <cerrno>
#include <cstring>
#include <system_error>

namespace ddip {

void throw_errno(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace ddip
