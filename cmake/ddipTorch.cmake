# libtorch from a Python environment or a folder, without find_package(Torch), which wants CUDA's whole toolkit for a torch
# that has CUDA. ddip_find_torch(FOLDER): where it is, empty if nowhere. ddip_use_torch(TARGET FOLDER): what to link.
# Used by the build and, installed, by find_package(ddip COMPONENTS engine); DDIP_TORCH_FOLDER says where to look.
function(ddip_find_torch result)
  set(folder "${DDIP_TORCH_FOLDER}")
  if(NOT folder)
    if(NOT Python_EXECUTABLE)
      find_program(Python_EXECUTABLE NAMES python3 python)
    endif()
    execute_process(
      COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s and s.origin else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(NOT EXISTS "${folder}/include/torch/csrc/distributed/c10d/Backend.hpp")
    set(folder "")
  endif()
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

function(ddip_use_torch target folder)
  target_include_directories(${target} SYSTEM INTERFACE ${folder}/include ${folder}/include/torch/csrc/api/include)
  # torch brings fmt's headers, of another version than the library on this machine, and they come first.
  target_compile_definitions(${target} INTERFACE USE_DISTRIBUTED USE_C10D USE_C10D_GLOO FMT_HEADER_ONLY)
  # libtorch_cpu exports functions of std::filesystem, of the compiler that it was built with: remove_all crashes in them
  # beside another one's. The C++ library comes first, be it shared or an archive.
  target_link_libraries(${target} INTERFACE stdc++)
  # torch's CUDA half is loaded because libtorch.so asks for it, though nothing of ours names a symbol of it.
  target_link_libraries(${target} INTERFACE "-Wl,--push-state,--no-as-needed,${folder}/lib/libtorch.so,--pop-state")
  foreach(library torch_cpu c10)
    target_link_libraries(${target} INTERFACE ${folder}/lib/lib${library}.so)
  endforeach()
  target_link_directories(${target} INTERFACE ${folder}/lib)
endfunction()
