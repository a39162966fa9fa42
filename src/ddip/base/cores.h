// How many cores this process may use.
#pragma once

namespace ddip {

int usable_cores();

}  // namespace ddip
