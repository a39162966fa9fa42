// Our errors as Python's: ddip.PeerLost and the others, also out of a backward, which is torch's call and not ours.
#pragma once

#include <exception>

namespace ddip::bindings {

void register_errors();

// For code that runs inside a call of torch's: throws what torch turns into our Python type.
[[noreturn]] void rethrow_inside_torch(std::exception_ptr error);

}  // namespace ddip::bindings
