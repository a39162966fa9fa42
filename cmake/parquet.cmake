# libddip_parquet.so, on Arrow's C++ library from the pyarrow wheel of Python_EXECUTABLE; left out where there is none.
# It is found again at run time where it was built, or beside us in site-packages.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u, os; s = u.find_spec('pyarrow'); print(os.path.dirname(s.origin) if s and s.origin else '')"
  OUTPUT_VARIABLE pyarrow_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(GLOB libarrow ${pyarrow_folder}/libarrow.so.[0-9]*)
file(GLOB libparquet ${pyarrow_folder}/libparquet.so.[0-9]*)
if(NOT pyarrow_folder OR NOT libarrow OR NOT libparquet OR NOT EXISTS ${pyarrow_folder}/include/parquet/file_reader.h)
  message(STATUS "ddip: Parquet is left out: no pyarrow with its headers for ${Python_EXECUTABLE}")
  return()
endif()
file(GLOB sources CONFIGURE_DEPENDS src/ddip/parquet_events/*.cpp)
add_library(ddip_parquet MODULE ${sources})
target_include_directories(ddip_parquet SYSTEM PRIVATE ${pyarrow_folder}/include)
target_link_libraries(ddip_parquet PRIVATE ddip_options ddip::data ${libparquet} ${libarrow})
set_target_properties(ddip_parquet PROPERTIES
  BUILD_RPATH "$ORIGIN/../pyarrow;${pyarrow_folder}" INSTALL_RPATH "$ORIGIN/../pyarrow;${pyarrow_folder}")
message(STATUS "ddip: Parquet through the Arrow in ${pyarrow_folder}")
