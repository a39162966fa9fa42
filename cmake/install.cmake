# What C++ users get: the headers and static libraries of ddip::client (and what lies below it), and find_package(ddip).
# `cmake --install` puts it under the prefix; `pip install .` under the environment's prefix, so that an activated
# environment is found by find_package too, with the program and the extension modules inside the Python package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(prefix "")
if(SKBUILD)
  set(prefix ${SKBUILD_DATA_DIR}/)
  set(CMAKE_INSTALL_LIBDIR lib)
endif()
set(package_dir ${prefix}${CMAKE_INSTALL_LIBDIR}/cmake/ddip)

foreach(name base net wire client)
  install(TARGETS ddip_${name} EXPORT ddipTargets ARCHIVE DESTINATION ${prefix}${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY src/ddip/${name} DESTINATION ${prefix}${CMAKE_INSTALL_INCLUDEDIR}/ddip FILES_MATCHING PATTERN "*.h")
endforeach()
install(EXPORT ddipTargets NAMESPACE ddip:: DESTINATION ${package_dir})

configure_package_config_file(cmake/ddipConfig.cmake.in ddipConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(ddipConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ddipConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ddipConfigVersion.cmake
        DESTINATION ${package_dir})

if(SKBUILD)
  # The program twice: where its Python package looks for it, and as the command `ddip`. A wheel cannot hold a link.
  install(TARGETS ddip_program RUNTIME DESTINATION ddip/_bin)
  install(TARGETS ddip_program RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR})
  if(DDIP_PYTHON)
    install(TARGETS _client _worker LIBRARY DESTINATION ddip)
  endif()
elseif(TARGET ddip_program)
  install(TARGETS ddip_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
