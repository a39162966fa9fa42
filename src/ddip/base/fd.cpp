#include "ddip/base/fd.h"

#include <fcntl.h>

#include "ddip/base/error.h"

namespace ddip {

Fd Fd::duplicate() const {
  Fd copy(::fcntl(fd_, F_DUPFD_CLOEXEC, 3));
  if (!copy) throw_errno("dup");
  return copy;
}

Fd above_standard(Fd fd) { return fd && fd.get() <= 2 ? fd.duplicate() : std::move(fd); }

}  // namespace ddip
