# libtorch from the Python environment's torch, without find_package(Torch), which wants CUDA's whole toolkit for a torch
# that has CUDA. Sets DDIP_ENGINE: whether there is a torch to build the data plane on.
option(DDIP_WITH_ENGINE "Build the data plane if there is a torch" ON)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
  OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(DDIP_WITH_ENGINE AND torch_folder AND EXISTS ${torch_folder}/include/torch/csrc/distributed/c10d/Backend.hpp)
  set(DDIP_ENGINE ON)
  add_library(ddip_torch INTERFACE)
  target_include_directories(ddip_torch SYSTEM INTERFACE ${torch_folder}/include ${torch_folder}/include/torch/csrc/api/include)
  # torch brings fmt's headers, of another version than the library on this machine, and they come first.
  target_compile_definitions(ddip_torch INTERFACE USE_DISTRIBUTED USE_C10D USE_C10D_GLOO FMT_HEADER_ONLY)
  target_link_directories(ddip_torch INTERFACE ${torch_folder}/lib)
  target_link_libraries(ddip_torch INTERFACE torch torch_cpu c10)
  message(STATUS "ddip: data plane on the torch in ${torch_folder}")
else()
  set(DDIP_ENGINE OFF)
  message(STATUS "ddip: the data plane is left out: not wanted, or no torch for ${Python_EXECUTABLE}")
endif()
