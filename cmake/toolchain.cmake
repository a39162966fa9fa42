# Compiler flags for our own code: warnings are errors, sanitizers on request, a fast linker and ccache where present.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(DDIP_CCACHE ccache)
if(DDIP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DDIP_CCACHE})
endif()

add_library(ddip_options INTERFACE)
target_compile_options(ddip_options INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers)
# Errors with the compilers we work with; a warning that another one invents must not stop a user's build.
if((CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13) OR
   (CMAKE_CXX_COMPILER_ID MATCHES Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 20))
  target_compile_options(ddip_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # libstdc++ 12's own stable_sort uses what it calls deprecated, and clang blames the caller.
  target_compile_options(ddip_options INTERFACE -Wthread-safety -Wno-deprecated-declarations)
endif()
if(DDIP_SANITIZE)
  add_compile_options(-fsanitize=${DDIP_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${DDIP_SANITIZE})
endif()
if(DDIP_SANITIZE STREQUAL thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(ddip_options INTERFACE -Wno-tsan)  # Asio's fences: gcc says that it does not model them
endif()
if(DDIP_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage in the libraries, or the fuzzers grope in the dark
endif()

find_program(DDIP_MOLD mold)
if(DDIP_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  add_link_options(-fuse-ld=mold)
endif()
