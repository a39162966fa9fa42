# Where built things go. The build that a working copy uses, build/release: into python/ddip, where Python finds them
# without installing. Every other build (debug, sanitizers, wheel) keeps its own, so that none replaces the program people use.
if(CMAKE_BINARY_DIR STREQUAL ${CMAKE_SOURCE_DIR}/build/release)
  set(package ${CMAKE_SOURCE_DIR}/python/ddip)
else()
  set(package ${CMAKE_BINARY_DIR}/package)
endif()
foreach(target ddip_program ddip_torch_program _client _worker _engine ddip_parquet ddip_mpi)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${package}/_bin LIBRARY_OUTPUT_DIRECTORY ${package})
  endif()
endforeach()
