#pragma once

#include <Python.h>

#include <string>

namespace ddip::bindings {

// The main thread's Python frames, innermost first, one "file:line in function" a line. Needs no GIL and sends no
// signal: it reads the frames as faulthandler's watchdog does, so while they change a line may be wrong, but a process
// that holds the GIL in C code answers all the same.
std::string read_python_stacks(PyInterpreterState* interpreter);

}  // namespace ddip::bindings
