// A file of /proc as it is now. The process it is about may end between open and read: a stream then throws, with
// nobody there to catch it; here that is a file without text.
#pragma once

#include <string>

namespace ddip {

std::string read_proc_file(const std::string& path);

}  // namespace ddip
