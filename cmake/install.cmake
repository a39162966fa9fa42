# What C++ users get: the headers and static libraries of ddip::client and, with torch, of ddip::ddip, and find_package(ddip).
# `cmake --install` puts it under its prefix. So does `pip install .`, whose prefix is the Python environment: an
# activated one is found by find_package too. There the program and the extension modules go into the Python package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
if(SKBUILD)
  set(CMAKE_INSTALL_LIBDIR lib)
  set(CMAKE_INSTALL_BINDIR ${SKBUILD_SCRIPTS_DIR})
endif()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ddip)

function(install_modules export_set)
  foreach(name ${ARGN})
    install(TARGETS ddip_${name} EXPORT ${export_set} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(DIRECTORY src/ddip/${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ddip FILES_MATCHING PATTERN "*.h")
  endforeach()
  install(EXPORT ${export_set} NAMESPACE ddip:: DESTINATION ${package_dir})
endfunction()

install_modules(ddipTargets base net wire client)
if(DDIP_ENGINE)
  add_library(ddip_ddip INTERFACE)
  set_target_properties(ddip_ddip PROPERTIES EXPORT_NAME ddip)
  target_link_libraries(ddip_ddip INTERFACE ddip_data_parallel)
  target_compile_features(ddip_ddip INTERFACE cxx_std_20)
  install(TARGETS ddip_ddip EXPORT ddipEngineTargets)
  install(FILES src/ddip/ddip.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ddip)
  install_modules(ddipEngineTargets comm tensors data_parallel)
endif()
install(FILES cmake/ddipTorch.cmake DESTINATION ${package_dir})

configure_package_config_file(cmake/ddipConfig.cmake.in ddipConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(ddipConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/ddipConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/ddipConfigVersion.cmake
        DESTINATION ${package_dir})

install(TARGETS ddip_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(SKBUILD)
  # A second copy where the Python package looks for it: a wheel cannot hold a link.
  install(TARGETS ddip_program RUNTIME DESTINATION ${SKBUILD_PLATLIB_DIR}/ddip/_bin)
  install(TARGETS _client _worker LIBRARY DESTINATION ${SKBUILD_PLATLIB_DIR}/ddip)
  if(DDIP_ENGINE)
    install(TARGETS _engine LIBRARY DESTINATION ${SKBUILD_PLATLIB_DIR}/ddip)
  endif()
endif()
